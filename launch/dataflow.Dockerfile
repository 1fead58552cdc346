# The image of Dataflow's workers, see launch/dataflow.sh. It mounts the share
# first, which needs root and CAP_SYS_ADMIN, as in `docker run --privileged`.
# Never built: no Docker daemon.
ARG PYTHON=3.12 BEAM=2.77.0
FROM apache/beam_python${PYTHON}_sdk:${BEAM} AS sdk
FROM python:${PYTHON}-slim
RUN apt-get update && apt-get install -y --no-install-recommends nfs-common \
  && rm -rf /var/lib/apt/lists/*
COPY --from=sdk /opt/apache/beam /opt/apache/beam
WORKDIR /opt/truenegs_jax
COPY . .
ARG BEAM
RUN pip install --no-cache-dir -c launch/constraints.txt ".[beam,gcs]" \
  "apache-beam[gcp]==$BEAM"
ARG SHARE FOLDER
ENV SHARE=$SHARE TRUENEGS_CACHE=$FOLDER TOKENIZERS_PARALLELISM=false
ENTRYPOINT ["/opt/truenegs_jax/launch/dataflow_worker.sh"]

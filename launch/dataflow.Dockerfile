# The image of Dataflow's workers, see launch/dataflow.sh. Never built.
ARG PYTHON=3.12 BEAM=2.77.0
FROM apache/beam_python${PYTHON}_sdk:${BEAM} AS sdk
FROM python:${PYTHON}-slim
COPY --from=sdk /opt/apache/beam /opt/apache/beam
WORKDIR /opt/truenegs_jax
COPY . .
ARG BEAM
# Beam's version is that of the machine that submits the job.
RUN sed -i '/^apache-beam==/d' launch/constraints.txt && \
  pip install --no-cache-dir -c launch/constraints.txt ".[beam,gcs]" \
  "apache-beam[gcp]==$BEAM"
ENV TOKENIZERS_PARALLELISM=false
ENTRYPOINT ["/opt/apache/beam/boot"]

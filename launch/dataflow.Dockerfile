# The image of Dataflow's workers, see launch/dataflow.sh. Never built.
ARG PYTHON=3.12 BEAM=2.77.0
FROM apache/beam_python${PYTHON}_sdk:${BEAM} AS sdk
FROM python:${PYTHON}-slim
COPY --from=sdk /opt/apache/beam /opt/apache/beam
WORKDIR /opt/truenegs_jax
COPY . .
ARG BEAM
RUN pip install --no-cache-dir -c launch/constraints.txt ".[beam,gcs]" \
  "apache-beam[gcp]==$BEAM"
ENV TOKENIZERS_PARALLELISM=false
ENTRYPOINT ["/opt/apache/beam/boot"]

#!/usr/bin/env bash
# Prepares rows on Google Cloud Dataflow.
#   PROJECT=mine REGION=us-central1 BUCKET=gs://mine/beam \
#     IMAGE=us-central1-docker.pkg.dev/mine/truenegs/worker \
#     launch/dataflow.sh --config=electra_base \
#     --config.data.sources='gs://mine/text/*.jsonl' --beam=--max_num_workers=50 \
#     --config.data.rows=gs://mine/rows/base
# All arguments are passed to prepare. Workers write to data.rows; BUCKET is for
# files of Dataflow. It needs Docker and, in PYTHON (default python), the package
# with `pip install '.[beam,gcs]' 'apache-beam[gcp]'`. The image has the code of
# this folder; BUILD=no uses the image that is there.
# Prepare again with the same command: shards that exist are kept. Ctrl-C does
# not end the job: gcloud dataflow jobs cancel JOB --region=REGION
# Never run on Dataflow: the image was not built, and the commands were run with
# stand-ins for docker and Python. Its function was run on Beam's FnApiRunner, and
# with rows in servers of buckets, on one machine.
# On Flink, whose machines share the folder of the rows:
#   truenegs prepare --config=... --runner=FlinkRunner \
#     --beam=--flink_master=HOST:8081 --beam=--parallelism=64 \
#     --beam=--environment_type=EXTERNAL --beam=--environment_config=localhost:50000
# where each machine of the cluster runs, with the package and the folder:
#   python -m apache_beam.runners.worker.worker_pool_main --service_port=50000
set -euo pipefail
: "${PROJECT:?Set it to a project of Google Cloud.}" "${REGION:?}"
: "${BUCKET:?Set it to a folder gs://...}" "${IMAGE:?}"
: "${1:?Pass the flags of prepare.}"
python=${PYTHON:-python}
root=$(dirname "$0")/..
if [ "${BUILD:-yes}" != no ]; then
  # Workers need the same versions as this process, which pickles functions.
  read -r python_version beam_version < <("$python" -c "
import importlib.metadata as metadata, sys
print('%d.%d' % sys.version_info[:2], metadata.version('apache-beam'))")
  docker build --tag="$IMAGE" --file="$root/launch/dataflow.Dockerfile" \
    --build-arg="PYTHON=$python_version" --build-arg="BEAM=$beam_version" "$root"
  docker push "$IMAGE"
fi
# One item at a time in each worker process, of which a VM has one per core.
exec "$python" -m truenegs_jax prepare --runner=DataflowRunner \
  --beam=--project="$PROJECT" --beam=--region="$REGION" \
  --beam=--temp_location="$BUCKET/temp" \
  --beam=--staging_location="$BUCKET/staging" \
  --beam=--sdk_container_image="$IMAGE" --beam=--sdk_location=container \
  --beam=--number_of_worker_harness_threads=1 "$@"

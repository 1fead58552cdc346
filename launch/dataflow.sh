#!/usr/bin/env bash
# Prepares rows on Google Cloud Dataflow; its workers share a folder over NFS.
#   PROJECT=mine REGION=us-central1 BUCKET=gs://mine/beam SUBNET=default \
#     IMAGE=us-central1-docker.pkg.dev/mine/truenegs/worker \
#     SHARE=10.0.0.2:/rows TRUENEGS_CACHE=/mnt/rows \
#     launch/dataflow.sh --config=configs/electra_base.py \
#     --config.data.sources='gs://mine/text/*.jsonl' --beam=--max_num_workers=50
# All arguments are passed to prepare. Run it on a VM of the same network that
# mounts SHARE, such as a Filestore instance, at TRUENEGS_CACHE: workers mount
# it there, too. It needs Docker and, in PYTHON (default python), the package
# with `pip install '.[beam,gcs]' 'apache-beam[gcp]'`. The image has the code of
# this folder. BUILD=no uses the image that is there.
# Prepare again with the same command: rows that exist are kept. Ctrl-C does not
# end the job: gcloud dataflow jobs cancel JOB --region=REGION
# Never run on Dataflow, only with stand-ins for docker and Python. Whether its
# containers may mount a share is not documented: if not, workers end with
# "mount: permission denied" in the job's log. Then use Flink on machines that
# share a folder, or --shard=i/n on several machines:
#   python -m truenegs_jax.prepare --config=... --runner=FlinkRunner \
#     --beam=--flink_master=HOST:8081 --beam=--parallelism=64 \
#     --beam=--environment_type=EXTERNAL --beam=--environment_config=localhost:50000
# where each machine of the cluster runs, with the package and the folder:
#   python -m apache_beam.runners.worker.worker_pool_main --service_port=50000
set -euo pipefail
: "${PROJECT:?Set it to a project of Google Cloud.}" "${REGION:?}" "${BUCKET:?}"
: "${SUBNET:?}" "${IMAGE:?}" "${SHARE:?Set it to HOST:/FOLDER.}"
: "${TRUENEGS_CACHE:?Set it to the folder that mounts SHARE.}"
: "${1:?Pass the flags of prepare.}"
python=${PYTHON:-python}
root=$(dirname "$0")/..
if [ "${BUILD:-yes}" != no ]; then
  # Workers need the same versions as this process, which pickles functions.
  read -r python_version beam_version < <("$python" -c "
import importlib.metadata as metadata, sys
print('%d.%d' % sys.version_info[:2], metadata.version('apache-beam'))")
  docker build --tag="$IMAGE" --file="$root/launch/dataflow.Dockerfile" \
    --build-arg="PYTHON=$python_version" --build-arg="BEAM=$beam_version" \
    --build-arg="SHARE=$SHARE" --build-arg="FOLDER=$TRUENEGS_CACHE" "$root"
  docker push "$IMAGE"
fi
# One item at a time in each worker process, of which a VM has one per core.
exec "$python" -m truenegs_jax.prepare --runner=DataflowRunner \
  --beam=--project="$PROJECT" --beam=--region="$REGION" \
  --beam=--subnetwork="regions/$REGION/subnetworks/$SUBNET" \
  --beam=--temp_location="$BUCKET/temp" \
  --beam=--staging_location="$BUCKET/staging" \
  --beam=--sdk_container_image="$IMAGE" --beam=--sdk_location=container \
  --beam=--number_of_worker_harness_threads=1 "$@"

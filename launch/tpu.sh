# shellcheck shell=bash
# Copies this folder to the hosts of a TPU and runs main there, or prepare on the
# first; sourced by tpu_vm.sh and tpu_pod.sh, which request the TPU.
# shellcheck source=launch/common.sh
source "$(dirname "$0")/common.sh"
: "${TPU:?Set it to a name.}" "${ZONE:?}" "${TYPE:?}" "${VERSION:?}"
: "${WORKDIR:?Set it to a folder of the run in a bucket: gs://BUCKET/runs/NAME}"
umask 077

work=$(mktemp -d)
trap 'rm -r "$work"; [ -z "${agent:-}" ] || ssh-agent -k >/dev/null' EXIT

# gcloud reaches several hosts only with its key in ssh-agent. It would make a
# missing key in the same way.
key=$HOME/.ssh/google_compute_engine
mkdir -p "$HOME/.ssh"
[ -e "$key" ] || ssh-keygen -q -t rsa -N '' -f "$key"
status=0
keys=$(ssh-add -l 2>/dev/null) || status=$?
if [ $status = 2 ]; then  # No agent is running.
  agent=$(ssh-agent -s)
  eval "$agent" >/dev/null
fi
fingerprint=$(ssh-keygen -lf "$key" | cut -d' ' -f2)
[[ $keys = *$fingerprint* ]] || ssh-add -q "$key" || fail "ssh-agent lacks the \
key $key, with which gcloud reaches the hosts. Type:
eval \"\$(ssh-agent)\" && ssh-add $key"

command=main hosts=all flags=(--workdir="$WORKDIR")
case ${1:-} in
  prepare)
    : "${ROWS:?Set it to a folder for the rows in a bucket: gs://BUCKET/rows}"
    command=prepare hosts=0 flags=(--config.data.rows="$ROWS")
    shift
    ;;
  *) [ -z "${ROWS:-}" ] || flags+=(--config.data.rows="$ROWS") ;;
esac
: "${1:?Pass the flags of $command.}"
set -- "${flags[@]}" "$@"
[ "${COMPILATION_CACHE:-}" != 1 ] || COMPILATION_CACHE=${WORKDIR%/*}/xla
VARS="${VARS:-} ${COMPILATION_CACHE:+JAX_COMPILATION_CACHE_DIR=$COMPILATION_CACHE}"
buckets=$(printf '%s\n' "$WORKDIR" "${ROWS:-}" "${COMPILATION_CACHE:-}" |
  sed -n 's,^\(gs://[^/]*\).*,\1,p' | sort -u)
for bucket in $buckets; do
  gcloud storage ls "$bucket" >/dev/null || fail "$bucket cannot be read. Correct \
the name, or create it in the TPU's region, for the account of its hosts. Type:
gcloud storage buckets create $bucket --location=${ZONE%-*} \
--uniform-bucket-level-access --soft-delete-duration=0
gcloud storage buckets add-iam-policy-binding $bucket \
--role=roles/storage.objectUser --member=serviceAccount:ACCOUNT"
done
dir=truenegs_jax
worker=$dir/launch/tpu_worker.sh
tar -C "$(dirname "$0")/.." --exclude=./{.git,.venv,runs} -czf "$work/code.tgz" .
# Secrets travel in this file, which only its owner can read: arguments are
# visible to others and in logs.
printf 'SETUP=%q EXTRAS=%q\n' "${SETUP:-:}" "${EXTRAS:-}" >"$work/variables"
for variable in $VARS; do
  name=${variable%%=*}
  [[ $variable = *=* || -n ${!name+set} ]] || fail "VARS has $name, but it is \
not set. Type: export $name=VALUE"
  [[ $variable = *=* ]] && value=${variable#*=} || value=${!name}
  printf 'export %s=%q\n' "$name" "$value" >>"$work/variables"
done

CREATE="--scopes=https://www.googleapis.com/auth/cloud-platform ${CREATE:-}"
tpu() { gcloud compute tpus "$@" --zone="$ZONE" --quiet; }
state() {  # Nothing if there is no TPU, "unanswered" if the request fails.
  describe 2>"$work/errors" || grep -q NOT_FOUND "$work/errors" || {
    cat "$work/errors" >&2
    echo unanswered
  }
}
is_preempted() {
  local s
  while s=$(state) && [ "$s" = unanswered ]; do pause_again; done
  [[ $s =~ $PREEMPTED ]]
}
failures=0
pause_again() {
  failures=$((failures + 1))
  [ $failures -le 20 ] || fail "$TPU: the requests above fail again and again."
  pause
}
on_hosts() { tpu tpu-vm ssh "$TPU" --worker=$hosts --command="$1" </dev/null; }
pause() {  # A signal ends it.
  sleep "${POLL_SECS:-30}" &
  wait $!
}
start_on_hosts() {
  local flags
  printf -v flags ' %q' "$@"
  tpu tpu-vm scp "$work/code.tgz" "$work/variables" "$TPU:" --worker=$hosts &&
    on_hosts "mkdir -p $dir && tar xf code.tgz -C $dir &&
      $worker start $command$flags"
}
run_flags() { run_to_its_end start_on_hosts "$@"; }
send_signal() {  # The worker fails until main has started.
  on_hosts "for i in {1..300}; do $worker $1 && break; sleep 1; done"
}

#!/bin/sh
# Make a RabbitMQ user with the least permissions for each service and trainer pool.
#     k8s/rabbitmq-users.sh VHOST PREFIX POOL[=SERVED|SERVED...]...  > users.txt
# Runs rabbitmqctl (set RABBITMQCTL to run it elsewhere) and prints each user's name and new password.
# An existing user keeps its password. The regular expressions are those of k8s/fedfa/files/permissions.yaml.
set -eu
if [ $# -lt 3 ]; then
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
fi
ctl=${RABBITMQCTL:-rabbitmqctl}
vhost=$1 prefix=$2
shift 2
known=$($ctl -q list_users | cut -f1)

user() { # name configure write read
    if printf '%s\n' "$known" | grep -qxF "$prefix-$1"; then
        echo "$prefix-$1 exists and keeps its password" >&2
    else
        # hexadecimal: rabbitmqctl takes a leading dash for an option
        password=$(head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
        $ctl -q add_user "$prefix-$1" "$password" > /dev/null
        printf '%s\t%s\n' "$prefix-$1" "$password"
    fi
    $ctl -q set_permissions -p "$vhost" "$prefix-$1" "$2" "$3" "$4"
}

user aggregator \
    '^fedfa\.(updates|broadcast|dead)$' \
    '^fedfa\.(updates|broadcast|dead)$' \
    '^fedfa\.(updates|dead)$'
user scheduler \
    '^(fedfa\.(updates|events|broadcast|dead|jobs(\..+)?)|amq\.gen-.*)$' \
    '^(fedfa\.(updates|events|broadcast|dead|jobs(\..+)?)|amq\.gen-.*)$' \
    '^(fedfa\.(updates|events|broadcast|dead|jobs)|amq\.gen-.*)$'
user cli \
    '^(fedfa\..*|amq\.gen-.*)$' \
    '^(fedfa\..*|amq\.gen-.*)$' \
    '^(fedfa\..*|amq\.gen-.*)$'
for pool in "$@"; do
    serves=${pool#*=}
    user "trainer-${pool%%=*}" \
        '^amq\.gen-.*$' \
        '^(fedfa\.(updates|events|broadcast|dead)|amq\.gen-.*)$' \
        "^(fedfa\.(broadcast|jobs\.($serves))|amq\.gen-.*)\$"
done

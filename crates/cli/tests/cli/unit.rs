//! The unit of systemd, in a systemd of its own: in new namespaces, on a copy of this machine's
//! root directory that holds what is written in memory.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::mounted::can_mount;
use crate::run::{Lab, STETFS, has, wait_until};

const SYSTEMD: &str = "/lib/systemd/systemd";

/// Starts systemd with nothing to do. $1 is an empty directory, $2 the program, $3 the sources.
const BOOT: &str = r#"
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir root changes work
mount -t overlay overlay -o lowerdir=/,upperdir=changes,workdir=work root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount -t sysfs sysfs root/sys
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
    mount -t cgroup2 cgroup2 root/sys/fs/cgroup
else
    mount -t tmpfs tmpfs root/sys/fs/cgroup
    mkdir root/sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup root/sys/fs/cgroup/systemd
fi
mount -t tmpfs tmpfs root/run
mount -t tmpfs tmpfs root/tmp
cp "$2" root/usr/bin/stetfs
mkdir -p root/etc/stetfs root/srv/a
units=root/etc/systemd/system
rm -rf $units
mkdir -p $units
cp -r "$3"/packaging/systemd/* $units/
printf '[Unit]\nDefaultDependencies=no\n' >$units/quiet.target
quiet=$units/stetfs@.service.d/quiet.conf
# It is started oftener than a server that dies by itself should be.
printf '[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n' >$quiet
printf '[Service]\nStandardError=append:/tmp/said\n' >>$quiet
cd root
mkdir -p old
pivot_root . old
# Other tests have mounts, which must not last until this one is over.
umount -l old
container=docker exec /lib/systemd/systemd --system --unit=quiet.target --show-status=no
"#;

/// Uses the unit; the first command that fails ends it.
const USE: &str = r#"
set -eu
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
# With a mount in it, the kernel may wait for what is killed at the end.
trap 'systemctl status --no-pager stetfs@a >&2; cat /tmp/said >&2; systemctl stop stetfs@a' ERR
for try in $(seq 100); do
    if systemctl is-system-running 2>/dev/null | grep -Eq 'running|degraded'; then break; fi
    sleep 0.1
done
stetfs mkfs -q /srv/a.img --size 64M
for options in defaults scheme=stet,noatime front=kernel,scheme=stet; do
    printf 'IMAGE=/srv/a.img\nDIR=/srv/a\nOPTIONS=%s\n' $options >/etc/stetfs/a.conf
    systemctl start stetfs@a
    # It is mounted when the start is over, and for everybody.
    stetfs mounts --check /srv/a
    if grep 'cannot be locked' /tmp/said; then false; fi
    echo $options >/srv/a/$options
    sync /srv/a/$options
    # Another version takes over, and files stay open.
    if [ $options != front=kernel,scheme=stet ]; then
        exec 5>/srv/a/open
        systemctl reload stetfs@a
        echo kept >&5
        exec 5>&-
        test "$(cat /srv/a/open)" = kept
        stetfs stats --json /srv/a | grep -A 2 '"upgrade"' | grep '"count": 1'
    fi
    # The server is killed, and started anew.
    before=$(systemctl show -P MainPID stetfs@a)
    kill -KILL $(stetfs stats --json /srv/a | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p')
    for try in $(seq 200); do
        now=$(systemctl show -P MainPID stetfs@a)
        if [ $now != 0 ] && [ $now != $before ] && systemctl is-active -q stetfs@a; then break; fi
        sleep 0.1
    done
    test "$(cat /srv/a/$options)" = $options
    systemctl stop stetfs@a
    if mountpoint /srv/a; then false; fi
    e2fsck -fn /srv/a.img
    echo "done: $options"
done
test "$(systemctl is-active stetfs@a)" = inactive
systemd-analyze security --no-pager --threshold=40 stetfs@a >/dev/null
echo 'all done'
"#;

#[test]
fn the_unit_keeps_a_volume_mounted() {
    let is_root = rustix::process::geteuid().is_root();
    if !can_mount() || !is_root || !Path::new(SYSTEMD).exists() {
        eprintln!("SKIPPED: root, /dev/fuse and systemd are needed");
        return;
    }
    let needed = ["unshare", "nsenter", "e2fsck", "mountpoint"];
    if !needed.into_iter().all(has) {
        return;
    }
    let lab = Lab::new();
    let dir = lab.str("systemd");
    fs::create_dir(&dir).unwrap();
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut systemd = Command::new("unshare")
        .args(["-mpuiC", "--fork", "--kill-child", "bash", "-c", BOOT])
        .args(["boot", &dir, STETFS, sources])
        .spawn()
        .unwrap();
    // The child of unshare(1), once it is systemd.
    let mut init = String::new();
    let children = format!("/proc/{0}/task/{0}/children", systemd.id());
    let mut is_over = false;
    wait_until("systemd is there", || {
        is_over = systemd.try_wait().unwrap().is_some();
        init = fs::read_to_string(&children).unwrap_or_default();
        let name = fs::read_to_string(format!("/proc/{}/comm", init.trim()));
        is_over || name.is_ok_and(|name| name.trim() == "systemd")
    });
    if is_over {
        eprintln!("SKIPPED: no systemd can be started here");
        return;
    }
    let used = Command::new("timeout")
        .args(["120", "nsenter", "-t", init.trim()])
        .args(["-m", "-p", "-u", "-i", "-C", "bash", "-c", USE])
        .output();
    systemd.kill().unwrap();
    systemd.wait().unwrap();
    let used = used.unwrap();
    let out = String::from_utf8_lossy(&used.stdout);
    assert!(
        used.status.success() && out.ends_with("all done\n"),
        "{used:#?}"
    );
}

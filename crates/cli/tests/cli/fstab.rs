//! Lines of /etc/fstab that mount ext4, and remounts. The kernel's own ext4 says which options
//! exist. Needs root, FUSE and loop devices; skipped with a message without them.

use std::fs;

use crate::mounted::Mount;
use crate::run::{Ran, assert_clean, stetfs, tool, unmount, wait_until};
use crate::twice::{self, Loop};

/// Options of ext4(5), of the kernel's table (`ext4_param_specs`) and of mount(8), with right and
/// wrong values. None may stop this machine (`errors=panic`, `abort`).
const OPTIONS: &str = "\
    bsddf minixdf grpid bsdgroups nogrpid sysvgroups resgid=5 resgid=root resgid=-1 resgid= \
    resuid=5 resuid=0x5 resuid=010 resuid=root resuid=4294967295 sb=1 sb=0x1 sb=0 sb=7 \
    errors=continue errors=remount-ro errors=x nouid32 debug oldalloc orlov \
    user_xattr acl noload norecovery bh nobh commit=5 commit=0 commit=0x5 commit=x commit \
    min_batch_time=5 min_batch_time min_batch_time=x max_batch_time=5 max_batch_time=x \
    journal_dev=0 journal_dev=1 journal_path=/dev/null journal_checksum nojournal_checksum \
    data=journal,journal_async_commit data_err=abort data_err=ignore data_err=x data_err \
    usrjquota= usrjquota usrjquota=aquota.user,jqfmt=vfsv1 grpjquota=aquota.group,jqfmt=vfsv0 \
    jqfmt=vfsold jqfmt=x grpquota quota noquota usrquota grpquota=x barrier barrier=1 barrier=0 \
    barrier=2 nobarrier i_version dax=inode dax=never dax=x stripe=0 stripe=16 stripe=0x10 \
    stripe=x stripe delalloc nodelalloc warn_on_error nowarn_on_error debug_want_extra_isize=32 \
    mblk_io_submit nomblk_io_submit block_validity noblock_validity block_validity=1 \
    inode_readahead_blks=32 inode_readahead_blks=31 inode_readahead_blks=0 \
    inode_readahead_blks=2147483648 journal_ioprio=3 journal_ioprio=8 auto_da_alloc \
    auto_da_alloc=1 auto_da_alloc=0 auto_da_alloc=2 auto_da_alloc=x noauto_da_alloc \
    dioread_nolock nodioread_nolock dioread_lock discard nodiscard init_itable=10 init_itable \
    init_itable=x noinit_itable fc_debug_force fc_debug_max_replay=1 max_dir_size_kb=1000 \
    max_dir_size_kb=x inlinecrypt nombcache no_mbcache prefetch_block_bitmaps \
    no_prefetch_block_bitmaps mb_optimize_scan=1 mb_optimize_scan=0 mb_optimize_scan=2 \
    mb_optimize_scan check=none check nocheck reservation noreservation journal=1 journal=update \
    data=journal data=ordered data=writeback data=x data bulk_read frobnicate uid=5 dots \
    lazytime nolazytime iversion noiversion sync async dirsync mand nomand silent loud \
    nosymfollow symfollow relatime norelatime strictatime nostrictatime noatime atime nodiratime \
    diratime dev nodev suid nosuid exec noexec ro rw defaults auto noauto user nouser users \
    nousers owner noowner group nogroup nofail _netdev x-systemd.automount X-mount.mkdir \
    comment=mine context=x fscontext=x defcontext=x rootcontext=x";

/// Options that the kernel refuses because of its own build or of the volume, not because of the
/// words; and options that only the mount itself refuses here.
const BY_CHANCE: &[&str] = &[
    "sb=7",
    "data=x",
    "fc_debug_force",
    "fc_debug_max_replay=1",
    "inlinecrypt",
];

fn helper(m: &Mount, args: &[&str]) -> Ran {
    m.helper("mount.fuse.stetfs", args)
}

#[test]
fn what_the_kernels_ext4_takes_is_taken() {
    if !twice::can() {
        return;
    }
    let m = Mount::new();
    let device = Loop::new(&m.image, &[]);
    let kernel = m.lab.str("kernel");
    fs::create_dir(&kernel).unwrap();
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for option in OPTIONS.split_whitespace() {
        let mount = ["-i", "-t", "ext4", "-o", option, &device.0, &kernel];
        let mut asked = tool("mount", &mount);
        // A program that another test has just started in a mount namespace of its own may still
        // have the mount before this one.
        wait_until("the kernel to be done with the mount before", || {
            let is_busy = asked.code != 0 && asked.err.contains("already mounted");
            if is_busy {
                asked = tool("mount", &mount);
            }
            !is_busy
        });
        if asked.code == 0 {
            unmount(&kernel);
            taken.push(option);
        } else {
            refused.push((option, asked.err));
        }
    }
    drop(device);
    assert!(taken.len() > 100 && refused.len() > 30, "{refused:?}");
    for &option in &taken {
        let ran = helper(&m, &[&m.image, &m.dir, "-f", "-o", option]);
        assert_eq!(ran.code, 0, "the kernel takes {option}: {ran:#?}");
    }
    for (option, why) in &refused {
        if BY_CHANCE.contains(option) {
            continue;
        }
        let ran = helper(&m, &[&m.image, &m.dir, "-f", "-o", option]);
        assert_eq!(ran.code, 1, "the kernel refuses {option}: {why}{ran:#?}");
    }
}

/// One line with all options that change nothing; the log names them once.
#[test]
fn what_changes_nothing_is_named_once() {
    if !twice::can() {
        return;
    }
    let m = Mount::new();
    let log = m.lab.str("log");
    let line = "defaults,noatime,stripe=16,min_batch_time=5,init_itable=10,noinit_itable,orlov,\
        journal_ioprio=3,data_err=abort,block_validity,minixdf,noquota,nouid32,i_version,\
        inode_readahead_blks=32,max_dir_size_kb=1000,dioread_lock,usrquota,dax=never,\
        mb_optimize_scan=1,nojournal_checksum,nosymfollow,lazytime,stripe=16,resuid=5";
    m.up(&["--log", &log, "-o", line]);
    fs::write(m.file("file"), "x").unwrap();
    std::os::unix::fs::symlink("file", m.file("link")).unwrap();
    let looped = fs::read(m.file("link")).unwrap_err();
    assert_eq!(looped.raw_os_error(), Some(40), "nosymfollow: ELOOP");
    m.down();
    let log = fs::read_to_string(log).unwrap();
    let named: Vec<&str> = log
        .lines()
        .filter(|l| l.contains("without effect here"))
        .collect();
    let [named] = named[..] else {
        panic!("{log}");
    };
    for word in [
        "stripe=16",
        "orlov",
        "usrquota",
        "dioread_lock",
        "lazytime",
        "nouid32",
    ] {
        assert_eq!(named.matches(word).count(), 1, "{word}: {named}");
    }
    // Options that describe what holds anyway, and options that have an effect.
    for word in [
        "block_validity",
        "data_err",
        "noatime",
        "minixdf",
        "resuid",
        "nosymfollow",
    ] {
        assert!(!named.contains(word), "{word}: {named}");
    }
}

/// Remounts as root does at the end of a boot, or to change a flag: with the line of /etc/fstab.
#[test]
fn a_remount_says_no_or_nothing() {
    if !twice::can() {
        return;
    }
    let m = Mount::new();
    let remount = |options: &str| helper(&m, &[&m.image, &m.dir, "-o", options]);
    let flags = || {
        let of = tool("findmnt", &["-n", "-o", "VFS-OPTIONS", &m.dir]).ok();
        of.trim().to_owned()
    };
    for how in ["loop", "noloop"] {
        let line = format!("data=ordered,noatime,commit=9,stripe=16,{how}");
        helper(&m, &[&m.image, &m.dir, "-o", &line]).ok();
        for same in [
            format!("rw,{line},remount"),
            format!("rw,remount,noexec,{line},scheme=jbd2,orlov"),
            "rw,remount,nosymfollow".to_owned(),
            format!("ro,remount,{line}"),
        ] {
            let ran = remount(&same);
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{same}");
        }
        assert!(flags().starts_with("ro"), "{}", flags());
        for other in [
            "data=journal",
            "scheme=stet",
            "commit=10",
            "memory=64M",
            "atomic=all",
        ] {
            remount(&format!("rw,remount,{other}")).fails(32, &[other, "cannot change"]);
        }
        // The server still writes.
        remount("rw,remount").ok();
        fs::write(m.file("file"), how).unwrap();
        m.down();
        // A volume that was mounted read-only has a server that cannot write.
        helper(&m, &[&m.image, &m.dir, "-o", &format!("ro,{how}")]).ok();
        remount("rw,remount").fails(32, &["mounted read-only", "-o rw"]);
        remount("ro,remount,noexec").ok();
        assert!(flags().starts_with("ro"), "{}", flags());
        assert!(fs::write(m.file("file"), "no").is_err());
        m.down();
    }
}

/// df and the list of mounts show the image, whatever stands for it.
#[test]
fn the_image_is_what_is_shown() {
    if !twice::can() {
        return;
    }
    let m = Mount::new();
    for how in ["loop", "noloop"] {
        m.up(&["-o", &format!("{how},noexec,nosuid,sync,dirsync,noatime")]);
        let shown = tool("df", &["--output=source", &m.dir]).ok();
        assert_eq!(shown.lines().last(), Some(m.image.as_str()), "{how}");
        let shown = tool("findmnt", &["-n", "-o", "SOURCE,OPTIONS", &m.dir]).ok();
        assert!(shown.starts_with(&m.image), "{how}: {shown}");
        for flag in ["noexec", "nosuid", "sync", "dirsync", "noatime"] {
            assert!(shown.contains(flag), "{how}: {shown}");
        }
        // Scheme and mode, for which these lists have no column.
        let listed = stetfs(&["mounts"]).ok();
        let row: Vec<&str> = listed
            .lines()
            .find(|l| l.contains(&m.dir))
            .unwrap()
            .split_whitespace()
            .collect();
        let version = env!("CARGO_PKG_VERSION");
        let shown = [&m.image, &m.dir, "jbd2", "journal", "rw", version];
        assert_eq!(row, shown, "{how}");
        // For everybody else the image is the file that it was.
        assert!(fs::metadata(&m.image).unwrap().is_file(), "{how}");
        // The image's name unmounts it, too.
        unmount(&m.image);
        wait_until("the image is released", || !twice::is_locked(&m.image));
        assert_clean(&m.image);
    }
}

#[test]
fn a_write_protected_device_is_mounted_read_only() {
    if !twice::can() {
        return;
    }
    let m = Mount::new();
    let device = Loop::new(&m.image, &[]);
    tool("blockdev", &["--setro", &device.0]).ok();
    let ran = stetfs(&["mount", &device.0, &m.dir]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(
        ran.err.contains("cannot be written: mounted read-only"),
        "{ran:#?}"
    );
    assert!(!ran.err.contains("copy what can"), "{ran:#?}");
    m.down();
    tool("blockdev", &["--setrw", &device.0]).ok();
}

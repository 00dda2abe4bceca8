//! recover: what e2fsck's `-E journal_only` and a mount by the kernel do to the same image, and not
//! a byte more.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::fsck::{PRIVATE, block_3000, cut_off, dirty};
use crate::run::{
    Lab, assert_clean, debugfs, debugfs_write, dumpe2fs, has, json, sha256, stetfs, tool,
};

const BLOCK: usize = 4096;

/// Asserts that two images differ in nothing but the superblock, whose times and counts tell which
/// program wrote it, and the journal, which need not be empty in the same way.
fn assert_same_volume(ours: &str, theirs: &str) {
    let stat = debugfs(ours, "blocks <8>");
    let journal: Vec<usize> = stat
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    assert!(journal.len() >= 1024, "{stat}");
    let (a, b) = (fs::read(ours).unwrap(), fs::read(theirs).unwrap());
    assert_eq!(a.len(), b.len());
    let other = |n: &usize| a[n * BLOCK..][..BLOCK] != b[n * BLOCK..][..BLOCK];
    let different: Vec<usize> = (1..a.len() / BLOCK)
        .filter(other)
        .filter(|n| !journal.contains(n))
        .collect();
    assert_eq!(different, Vec::<usize>::new());
}

#[test]
fn a_clean_volume_is_not_touched() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let before = (sha256(&image), fs::metadata(&image).unwrap());
    let ran = stetfs(&["recover", &image]);
    assert!(ran.out.contains("clean, nothing to recover"), "{ran:?}");
    let told = json(&stetfs(&["recover", "--json", &image]).ok());
    assert_eq!(told["was_needed"], false);
    assert_eq!(told["written"], false);
    let after = fs::metadata(&image).unwrap();
    assert_eq!(sha256(&image), before.0);
    let times = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    assert_eq!(times(&after), times(&before.1));
}

#[test]
fn a_journal_is_replayed_as_e2fsck_does() {
    let (lab, image) = dirty();
    let theirs = lab.str("theirs.img");
    fs::copy(&image, &theirs).unwrap();
    let mounts = dumpe2fs(&image, "Mount count");
    let before = sha256(&image);
    let ran = stetfs(&["recover", "-n", &image]);
    assert!(
        ran.out.contains("recovered the journal: 1 transactions") && ran.out.contains("--dry-run"),
        "{ran:?}"
    );
    assert_eq!(sha256(&image), before);
    let told = json(&stetfs(&["recover", "--json", &image]).ok());
    assert_eq!(told["transactions"], 1, "{told}");
    assert_eq!(told["scheme"], "jbd2");
    assert_eq!(told["written"], true);
    tool("e2fsck", &["-p", "-E", "journal_only", &theirs]).ok();
    assert_eq!(block_3000(&image), [0x55; BLOCK]);
    assert_same_volume(&image, &theirs);
    assert_clean(&image);
    assert_eq!(dumpe2fs(&image, "Mount count"), mounts);
    // Now there is nothing left.
    let before = sha256(&image);
    assert!(stetfs(&["recover", &image]).ok().contains("clean"));
    assert_eq!(sha256(&image), before);
}

/// Only stetfs can recover these; e2fsck and debugfs see what came of it.
#[test]
fn a_log_of_the_volumes_own_scheme_is_recovered_by_that_scheme() {
    for options in PRIVATE {
        let (_lab, image) = cut_off(options);
        let told = json(&stetfs(&["recover", "--json", &image]).ok());
        let scheme = options.split(',').next().unwrap();
        assert_eq!(
            format!("scheme={}", told["scheme"].as_str().unwrap()),
            scheme
        );
        assert_eq!(told["was_needed"], true);
        assert_clean(&image);
        assert_eq!(debugfs(&image, "cat /kept"), "what was synced");
        // The mount that was cut off, and no other.
        assert_eq!(dumpe2fs(&image, "Mount count"), "1");
        let before = sha256(&image);
        assert!(stetfs(&["recover", &image]).ok().contains("clean"));
        assert_eq!(sha256(&image), before);
    }
}

/// The kernel's own journal, with a file that was deleted while it was open.
#[test]
fn what_the_kernel_left_is_recovered_as_the_kernel_does() {
    if !rustix::process::geteuid().is_root() || !has("losetup") {
        eprintln!("SKIPPED: only root can mount by the kernel");
        return;
    }
    let lab = Lab::in_memory();
    let image = lab.volume(&[]);
    let (dir, ours, theirs) = (lab.str("mnt"), lab.str("ours.img"), lab.str("theirs.img"));
    fs::create_dir(&dir).unwrap();
    tool("mount", &["-o", "loop,data=journal", &image, &dir]).ok();
    let script = format!(
        "cd {dir}; mkdir d; echo kept > d/f; head -c 300000 /dev/urandom > doomed; \
         exec 3< doomed; rm doomed; sync d/f; sync -f .; cp {image} {ours}"
    );
    tool("sh", &["-ec", &script]).ok();
    crate::run::unmount(&dir);
    let features = dumpe2fs(&ours, "Filesystem features");
    assert!(features.contains("needs_recovery"), "{features}");
    fs::copy(&ours, &theirs).unwrap();
    let told = json(&stetfs(&["recover", "--json", &ours]).ok());
    assert!(told["transactions"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(told["orphans_deleted"], 1, "{told}");
    assert_clean(&ours);
    tool("mount", &["-o", "loop", &theirs, &dir]).ok();
    let kernel = tool("sh", &["-c", &format!("cd {dir}; ls -li . d; md5sum d/f")]).ok();
    crate::run::unmount(&dir);
    tool("mount", &["-o", "loop,ro", &ours, &dir]).ok();
    let own = tool("sh", &["-c", &format!("cd {dir}; ls -li . d; md5sum d/f")]).ok();
    crate::run::unmount(&dir);
    assert_eq!(own, kernel);
    for count in ["Free blocks", "Free inodes"] {
        assert_eq!(dumpe2fs(&ours, count), dumpe2fs(&theirs, count), "{count}");
    }
}

/// Deleted files of a volume whose journal is empty.
#[test]
fn orphans_alone_are_finished() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    fs::write(lab.path("file"), vec![1; 50_000]).unwrap();
    stetfs(&["cp", &lab.str("file"), &lab.place("/doomed")]).ok();
    let stat = debugfs(&image, "stat /doomed");
    let ino = stat.split("Inode: ").nth(1).unwrap();
    let ino = ino.split_whitespace().next().unwrap();
    let links = format!("sif <{ino}> links_count 0");
    let head = format!("ssv last_orphan {ino}");
    debugfs_write(&image, &["unlink /doomed", &links, &head]);
    let ran = stetfs(&["recover", &image]);
    assert!(ran.out.contains("freed 1 deleted files"), "{ran:?}");
    assert_clean(&image);
}

#[test]
fn what_cannot_be_recovered_is_told() {
    let lab = Lab::new();
    let image = lab.volume(&["--", "-O", "^has_journal"]);
    assert!(stetfs(&["recover", &image]).ok().contains("clean"));
    debugfs_write(&image, &["ssv state 0"]);
    stetfs(&["recover", &image]).fails(1, &["has no journal to recover", "stetfs fsck"]);
    stetfs(&["recover", &lab.str("none.img")]).fails(1, &["none.img"]);
    stetfs(&["recover", "--nvm", &image]).fails(2, &["IMAGE"]);
    let (_lab, dirty) = dirty();
    let holder = fs::File::open(&dirty).unwrap();
    holder.try_lock().unwrap();
    stetfs(&["recover", &dirty]).fails(1, &["in use"]);
    drop(holder);
    // Half of a volume is not repaired.
    fs::OpenOptions::new()
        .write(true)
        .open(&dirty)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    stetfs(&["recover", &dirty]).fails(1, &["is not whole"]);
}

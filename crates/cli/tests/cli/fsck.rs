//! fsck: our code recovers, e2fsck judges, and the exit codes are those of fsck(8).

use std::fs;
use std::path::Path;

use crate::run::{Lab, assert_clean, debugfs, debugfs_write, dumpe2fs, json, sha256, stetfs, tool};

/// Makes an image whose journal, written by debugfs, holds block 3000 with bytes 0x55, to be
/// replayed.
pub(crate) fn dirty() -> (Lab, String) {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let content = lab.path("content");
    fs::write(&content, [0x55; 4096]).unwrap();
    debugfs_write(
        &image,
        &["jo", &format!("jw -b 3000 {}", content.display()), "jc"],
    );
    assert!(dumpe2fs(&image, "Filesystem features").contains("needs_recovery"));
    (lab, image)
}

pub(crate) fn block_3000(image: &str) -> Vec<u8> {
    fs::read(image).unwrap()[3000 * 4096..][..4096].to_vec()
}

#[test]
fn a_clean_volume_is_clean() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let ran = stetfs(&["fsck", "-n", &image]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains("Pass 5") && !ran.out.contains("recovered"),
        "{ran:?}"
    );
}

#[test]
fn the_journal_that_debugfs_wrote_is_replayed() {
    let (_lab, image) = dirty();
    assert_eq!(
        json(&stetfs(&["info", "--json", &image]).ok())["state"],
        "needs recovery"
    );
    // Without a terminal, as here, fsck works as with -p.
    let ran = stetfs(&["fsck", &image]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains("recovered the journal: 1 transactions"),
        "{ran:?}"
    );
    assert_eq!(block_3000(&image), [0x55; 4096]);
    assert!(!dumpe2fs(&image, "Filesystem features").contains("needs_recovery"));
    assert_clean(&image);
}

/// Options of mounts whose log only stetfs can read: in memory since the scheme needs it, in memory
/// since the options say so, and on a device.
pub(crate) const PRIVATE: [&str; 3] = [
    "scheme=shortcut,durability=process",
    "scheme=stet,dax,durability=process",
    "scheme=stet",
];

/// Returns a volume whose power went off during use with these options: `kept` is only in the log.
pub(crate) fn cut_off(options: &str) -> (Lab, String) {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let options = ::stetfs::MountOptions::parse(options).unwrap();
    let dev = ::stetfs::open_device(Path::new(&image), &options, false).unwrap();
    let (fs, _) = ::stetfs::Fs::mount(dev, options).unwrap();
    let caller = ::stetfs::Caller::root();
    let how = ::stetfs::OpenFlags::READ | ::stetfs::OpenFlags::WRITE;
    let kept = fs.create(&caller, fs.root(), b"kept", 0o644, how).unwrap();
    fs.write(&caller, kept.ino, 0, b"what was synced").unwrap();
    fs.fsync(kept.ino, false).unwrap();
    // Dropped, not unmounted.
    (lab, image)
}

/// The memory beside a volume is lost, with what was committed last. Only --forget-log makes e2fsck
/// repair the rest; everything that was home is there.
#[test]
fn what_is_lost_is_given_up_at_the_users_wish_only() {
    let with_memory = stetfs_schemes::SCHEMES
        .iter()
        .map(|scheme| scheme.about)
        .filter(|about| about.nvm.is_needed());
    let mut schemes = 0;
    for about in with_memory {
        schemes += 1;
        let lab = Lab::new();
        let (image, nvm) = (lab.volume(&[]), lab.str("nvm"));
        let options = format!("scheme={},durability=process,nvm={nvm}", about.name);
        let options = ::stetfs::MountOptions::parse(&options).unwrap();
        let mount = || {
            let media = ::stetfs::open_media(Path::new(&image), &options, false).unwrap();
            ::stetfs::Fs::mount(media, options.clone()).unwrap().0
        };
        let caller = ::stetfs::Caller::root();
        let how = ::stetfs::OpenFlags::READ | ::stetfs::OpenFlags::WRITE;
        let write = |fs: &::stetfs::Fs, name: &str| {
            let name = name.as_bytes();
            let file = fs.create(&caller, fs.root(), name, 0o644, how).unwrap();
            fs.write(&caller, file.ino, 0, &[name[0]; 9000]).unwrap();
            fs.fsync(file.ino, false).unwrap();
        };
        let fs = mount();
        write(&fs, "home");
        fs.unmount().unwrap();
        drop(fs);
        let fs = mount();
        (0..100).for_each(|n| write(&fs, &format!("{n} is lost")));
        // Dropped, not unmounted.
        drop(fs);
        fs::remove_file(&nvm).unwrap();
        let before = sha256(&image);
        let ran = stetfs(&["fsck", "-y", &image]);
        assert_eq!(ran.code, 8, "{ran:?}");
        assert!(ran.err.contains("--forget-log"), "{ran:?}");
        assert_eq!(sha256(&image), before, "{}", about.name);
        let ran = stetfs(&["fsck", "-y", "--forget-log", &image]);
        assert!(ran.code <= 1, "{ran:?}");
        let told = format!("GIVEN UP: the changes that scheme {}", about.name);
        assert!(
            ran.err.contains(&told) && ran.err.contains("LOST"),
            "{ran:?}"
        );
        assert_clean(&image);
        assert_eq!(debugfs(&image, "cat /home"), "h".repeat(9000));
        // The volume is plain again, so any scheme may mount it.
        let options = ::stetfs::MountOptions::default();
        let dev = ::stetfs::open_device(Path::new(&image), &options, false).unwrap();
        let (fs, report) = ::stetfs::Fs::mount(dev, options).unwrap();
        assert_eq!(report.warnings, Vec::<String>::new());
        write(&fs, "later");
        fs.unmount().unwrap();
        drop(fs);
        assert_clean(&image);
    }
    assert!(schemes >= 4);
}

/// A log that can be recovered is recovered, whatever the user would give up.
#[test]
fn nothing_is_given_up_that_can_be_recovered() {
    let (_lab, image) = cut_off(PRIVATE[0]);
    let ran = stetfs(&["fsck", "-y", "--forget-log", &image]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.err.contains("GIVEN UP"), "{ran:?}");
    assert_eq!(debugfs(&image, "cat /kept"), "what was synced");
}

#[test]
fn a_log_that_only_stetfs_can_read_is_left_to_it() {
    PRIVATE.into_iter().for_each(is_left_to_stetfs);
}

fn is_left_to_stetfs(options: &str) {
    let (lab, image) = cut_off(options);
    let before = sha256(&image);
    // Even if e2fsck may repair everything.
    let ran = tool("e2fsck", &["-fy", &image]);
    assert_eq!(ran.code, 8, "{ran:?}");
    assert!(format!("{ran:?}").contains("FEATURE_I31"), "{ran:?}");
    if rustix::process::geteuid().is_root() {
        let dir = lab.str("mnt");
        fs::create_dir(&dir).unwrap();
        for how in ["loop", "loop,ro", "loop,ro,noload"] {
            assert_ne!(tool("mount", &["-o", how, &image, &dir]).code, 0, "{how}");
        }
    } else {
        eprintln!("SKIPPED: only root can ask the kernel to mount it");
    }
    assert_eq!(sha256(&image), before, "refused and untouched");
    assert_eq!(
        json(&stetfs(&["info", "--json", &image]).ok())["state"],
        "needs recovery"
    );
    let ran = stetfs(&["fsck", &image]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("recovered the journal"), "{ran:?}");
    assert_clean(&image);
    assert_eq!(
        stetfs(&["cat", &format!("{image}:/kept")]).ok(),
        "what was synced"
    );
}

#[test]
fn a_volume_that_was_cut_off_is_read_as_it_would_be_recovered() {
    for options in PRIVATE {
        let (_lab, image) = cut_off(options);
        let before = sha256(&image);
        assert_eq!(
            stetfs(&["cat", &format!("{image}:/kept")]).ok(),
            "what was synced"
        );
        assert_eq!(sha256(&image), before);
        // A command that writes recovers the volume first.
        stetfs(&["mkdir", &format!("{image}:/dir")]).ok();
        assert_clean(&image);
    }
}

#[test]
fn no_change_means_no_change() {
    let (_lab, image) = dirty();
    let before = sha256(&image);
    stetfs(&["fsck", "-n", &image]);
    assert_eq!(sha256(&image), before);
}

#[test]
fn reading_a_dirty_volume_recovers_it_in_memory_and_says_so() {
    let (lab, image) = dirty();
    let before = sha256(&image);
    let ran = stetfs(&["ls", &image]);
    let words = "recovered the journal: 1 transactions";
    assert!(
        ran.err.contains(words) && ran.err.contains("in memory only"),
        "{ran:?}"
    );
    assert_eq!(ran.ok(), "lost+found\n");
    stetfs(&["cp", "-r", &format!("{image}:/"), &lab.str("out")]).ok();
    assert_eq!(sha256(&image), before);
}

#[test]
fn damage_is_repaired_with_the_right_codes() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    stetfs(&["mkdir", "-p", &lab.place("/a/b")]).ok();
    debugfs_write(&image, &["clri /a/b"]);
    assert_eq!(stetfs(&["fsck", "-n", &image]).code, 4);
    assert_eq!(stetfs(&["fsck", "-y", &image]).code, 1);
    assert_eq!(stetfs(&["fsck", "-y", &image]).code, 0);
    assert_clean(&image);
}

#[test]
fn a_superblock_that_is_gone_is_left_to_e2fsck() {
    let lab = Lab::new();
    let image = lab.str("disk.img");
    // Several groups, so that there are copies of the superblock.
    stetfs(&["mkfs", &image, "--size", "64M", "-b", "1K"]).ok();
    let mut bytes = fs::read(&image).unwrap();
    bytes[1024..2048].fill(0);
    fs::write(&image, &bytes).unwrap();
    stetfs(&["ls", &image]).fails(1, &["no ext4 volume", "stetfs fsck"]);
    assert_eq!(stetfs(&["fsck", "-y", &image]).code & !1, 0);
    assert_clean(&image);
}

#[test]
fn what_cannot_be_checked_is_told_with_fscks_codes() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    stetfs(&["fsck", &lab.str("none.img")]).fails(8, &["none.img", "no such file"]);
    stetfs(&["fsck"]).fails(16, &["IMAGE"]);
    stetfs(&["fsck", "-n", "-y", &image]).fails(16, &["cannot be used with"]);
    let holder = fs::File::open(&image).unwrap();
    holder.try_lock().unwrap();
    stetfs(&["fsck", "-p", &image]).fails(8, &[&image, "in use"]);
}

#[test]
fn orphans_are_finished() {
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let file = lab.path("file");
    fs::write(&file, vec![1; 50_000]).unwrap();
    stetfs(&["cp", file.to_str().unwrap(), &lab.place("/doomed")]).ok();
    // As after a crash while the deleted file was open: no name, no links, at the head of the
    // orphan list.
    let stat = debugfs(&image, "stat /doomed");
    let ino = stat
        .split("Inode: ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned();
    debugfs_write(
        &image,
        &[
            "unlink /doomed",
            &format!("sif <{ino}> links_count 0"),
            &format!("ssv last_orphan {ino}"),
        ],
    );
    let ran = stetfs(&["fsck", "-p", &image]);
    assert!(ran.out.contains("freed 1 deleted files"), "{ran:?}");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_clean(&image);
}

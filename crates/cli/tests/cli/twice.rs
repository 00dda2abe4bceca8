//! One volume, two users: the second is refused, by whatever name it calls the volume. Needs root,
//! FUSE and loop devices; skipped with a message without them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::mounted::can_mount;
use crate::run::{Lab, Ran, assert_clean, dumpe2fs, stetfs, tool, unmount, wait_until};

/// A loop device; dropping it detaches it.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn new(image: &str, window: &[&str]) -> Self {
        let mut args = vec!["-f", "--show"];
        args.extend(window);
        args.push(image);
        Self(tool("losetup", &args).ok().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tool("losetup", &["-d", &self.0]);
    }
}

/// A mount of ours; dropping it unmounts.
pub(crate) struct Mount(pub(crate) String);

impl Mount {
    #[track_caller]
    pub(crate) fn up(lab: &Lab, image: &str, dir: &str, options: &str) -> Self {
        mount(lab, image, dir, options).ok();
        Self(lab.str(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        stetfs(&["umount", &self.0]);
    }
}

pub(crate) fn mount(lab: &Lab, image: &str, dir: &str, options: &str) -> Ran {
    let dir = lab.str(dir);
    fs::create_dir_all(&dir).unwrap();
    stetfs(&["mount", "-o", options, image, &dir])
}

pub(crate) fn can() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || tool("losetup", &["-f"]).code != 0 {
        eprintln!("SKIPPED: no loop devices here");
        return false;
    }
    can_mount()
}

/// A loop device and its backing file, in either order, with and without a device that stands for
/// the mount; a second device on the same file; a device on the device. They are attached anew each
/// time, because each has a cache of its own, which is outdated once another was used.
#[test]
fn a_loop_device_and_its_backing_file() {
    if !can() {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let firsts = [
        (0, "loop"),
        (0, "noloop"),
        (1, "noloop"),
        (2, "noloop"),
        (3, "noloop"),
    ];
    for (first, options) in firsts {
        let device = Loop::new(&image, &[]);
        let other = Loop::new(&image, &[]);
        let above = Loop::new(&device.0, &[]);
        let names = [&image, &device.0, &other.0, &above.0];
        let up = Mount::up(&lab, names[first], "first", options);
        fs::write(lab.path("first/file"), names[first]).unwrap();
        let first = format!("{} {options}", names[first]);
        for (second, options) in names.into_iter().map(|n| (n, "rw")).chain([(&image, "ro")]) {
            let ran = mount(&lab, second, "second", options);
            assert_eq!(ran.code, 1, "{first} and {second} {options}: {ran:#?}");
            let says_why = ["is mounted on", "in use"];
            let says_why = says_why.iter().any(|words| ran.err.contains(words));
            assert!(says_why, "{first} and {second} {options}: {ran:#?}");
        }
        drop((up, above, other, device));
        assert_clean(&image);
    }
}

/// Two partitions of one file are two volumes. Unmounting one once waited for the other's server,
/// as if that had not released the file.
#[test]
fn parts_of_one_file_are_used_beside_each_other() {
    if !can() {
        return;
    }
    let lab = Lab::new();
    let disk = lab.str("disk");
    fs::File::create(&disk).unwrap().set_len(40 << 20).unwrap();
    let window = |at: &'static str| ["-o", at, "--sizelimit", "16777216"];
    let first = Loop::new(&disk, &window("1048576"));
    let second = Loop::new(&disk, &window("17825792"));
    let overlapping = Loop::new(&disk, &window("9437184"));
    for device in [&first, &second] {
        stetfs(&["mkfs", &device.0]).ok();
    }
    let up = Mount::up(&lab, &first.0, "first", "noloop");
    let also_up = Mount::up(&lab, &second.0, "second", "noloop");
    mount(&lab, &overlapping.0, "third", "ro").fails(1, &["in use"]);
    mount(&lab, &disk, "third", "ro").fails(1, &["is mounted on"]);
    stetfs(&["umount", "--timeout", "5", &up.0]).ok();
    fs::write(lab.path("second/file"), "still there").unwrap();
    stetfs(&["umount", "--timeout", "5", &also_up.0]).ok();
    for device in [&first, &second] {
        assert_clean(&device.0);
    }
}

/// The kernel must not mount a volume that we have mounted: the device that stands for the mount is
/// in use.
#[test]
fn the_kernel_does_not_mount_what_we_have() {
    if !can() {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let kernel = lab.str("kernel");
    fs::create_dir(&kernel).unwrap();
    let ours = Mount::up(&lab, &image, "ours", "loop");
    let ran = tool("mount", &["-t", "ext4", "-o", "loop", &image, &kernel]);
    if ran.code == 0 {
        unmount(&kernel);
    }
    assert_ne!(ran.code, 0, "{ran:#?}");
    drop(ours);
    assert_clean(&image);
}

/// A volume that the kernel has mounted is recognised by its file.
#[test]
fn we_do_not_mount_what_the_kernel_has() {
    if !can() {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let kernel = lab.str("kernel");
    fs::create_dir(&kernel).unwrap();
    tool("mount", &["-t", "ext4", "-o", "loop", &image, &kernel]).ok();
    let info = stetfs(&["info", &image]);
    let ran = mount(&lab, &image, "ours", "rw");
    let listed = stetfs(&["ls", &image]);
    unmount(&kernel);
    assert!(
        info.out.contains(&format!("mounted on {kernel} (ext4)")),
        "{info:#?}"
    );
    ran.fails(1, &["is mounted on", &kernel]);
    listed.fails(1, &["is mounted on", &kernel]);
}

/// Feature mmp: while we have the volume, e2fsck and the kernel, which cannot know otherwise, see
/// that somebody uses it.
#[test]
fn the_volume_itself_says_that_it_is_in_use() {
    if !can() {
        return;
    }
    let lab = Lab::new();
    let features = ["--", "-O", "mmp", "-E", "mmp_update_interval=1"];
    let image = lab.volume(&features);
    let is_clean = || {
        let ran = tool("dumpe2fs", &["-m", &image]);
        format!("{}{}", ran.out, ran.err).contains("MMP is clean")
    };
    let block: u64 = dumpe2fs(&image, "MMP block number").parse().unwrap();
    let sequence = || {
        let mut raw = [0; 4];
        let file = fs::File::open(&image).unwrap();
        file.read_exact_at(&mut raw, block * 4096 + 4).unwrap();
        u32::from_le_bytes(raw)
    };
    assert!(is_clean());
    let kernel = lab.str("kernel");
    fs::create_dir(&kernel).unwrap();
    let ours = Mount::up(&lab, &image, "ours", "noloop");
    fs::write(lab.path("ours/file"), "ours").unwrap();
    let first = sequence();
    assert_ne!(first, 0xff4d_4d50);
    let device = Loop::new(&image, &[]);
    // Each of them waits 11 seconds.
    let (mounted, checked) = std::thread::scope(|scope| {
        let mounted = scope.spawn(|| tool("mount", &["-t", "ext4", &device.0, &kernel]));
        let checked = scope.spawn(|| tool("e2fsck", &["-fy", &image]));
        (mounted.join().unwrap(), checked.join().unwrap())
    });
    if mounted.code == 0 {
        unmount(&kernel);
    }
    assert_ne!(mounted.code, 0, "{mounted:#?}");
    assert_ne!(sequence(), first);
    assert_eq!(checked.code & 8, 8, "{checked:#?}");
    assert_eq!(fs::read_to_string(lab.path("ours/file")).unwrap(), "ours");
    // A copy, as a crash would leave the volume: nobody changes its number any more.
    let copy = lab.str("copy.img");
    fs::copy(&image, &copy).unwrap();
    drop(device);
    drop(ours);
    assert!(is_clean());
    assert!(dumpe2fs(&image, "Filesystem features").contains("mmp"));
    assert_clean(&image);
    drop(Mount::up(&lab, &copy, "ours", "noloop"));
    assert_clean(&copy);
    // A number that says that e2fsck has the volume, or was killed. The volume has no checksums, so
    // that the test can write it.
    let other = lab.str("other.img");
    let features = ["--", "-O", "mmp,^metadata_csum"];
    let mut args = vec!["mkfs", &other, "--size", "16M"];
    args.extend(features);
    stetfs(&args).ok();
    let block: u64 = dumpe2fs(&other, "MMP block number").parse().unwrap();
    let file = fs::File::options().write(true).open(&other).unwrap();
    file.write_all_at(&0xe24d_4d50u32.to_le_bytes(), block * 4096 + 4)
        .unwrap();
    let before = fs::read(&other).unwrap();
    mount(&lab, &other, "ours", "noloop").fails(1, &["in use by e2fsck"]);
    assert!(before == fs::read(&other).unwrap());
}

/// True if somebody has a lock on the image.
pub(crate) fn is_locked(image: &str) -> bool {
    tool("flock", &["--nonblock", image, "true"]).code != 0
}

/// Another name of the image, a detached mount with an open file, another program's lock: once each
/// of these was waited for, for half a minute and without a word.
#[test]
fn who_has_it_is_said_at_once() {
    if !can() {
        return;
    }
    let lab = Lab::new();
    let image = lab.volume(&[]);
    let link = lab.str("link.img");
    fs::hard_link(&image, &link).unwrap();
    const AT_ONCE: Duration = Duration::from_secs(15);
    let refused = |what: &str, words: &[&str]| {
        let began = Instant::now();
        mount(&lab, &link, "second", "rw").fails(1, words);
        assert!(began.elapsed() < AT_ONCE, "{what}: {:?}", began.elapsed());
    };
    for options in ["loop", "noloop"] {
        let up = Mount::up(&lab, &image, "first", options);
        refused("a hard link", &["is mounted on", "first"]);
        let open = fs::File::create(lab.path("first/open")).unwrap();
        stetfs(&["umount", "--lazy", &up.0]).ok();
        refused("a detached mount", &["in use", "by stetfs, process"]);
        drop(open);
        wait_until("the image is released", || !is_locked(&image));
    }
    let lock = |program: &str, args: &[&str]| Command::new(program).args(args).spawn().unwrap();
    let mut other = lock("flock", &["--no-fork", &image, "sleep", "60"]);
    wait_until("it is locked", || is_locked(&image));
    refused("another program", &["by sleep, process"]);
    other.kill().unwrap();
    other.wait().unwrap();
    // A server that is about to end is waited for, and named.
    let ours = lab.str("stetfs");
    fs::copy(tool("sh", &["-c", "command -v flock"]).ok().trim(), &ours).unwrap();
    let mut server = lock(&ours, &[&image, "sleep", "3"]);
    wait_until("it is locked", || is_locked(&image));
    let ran = mount(&lab, &image, "second", "rw");
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("waiting for stetfs, process"), "{ran:#?}");
    server.wait().unwrap();
    stetfs(&["umount", &lab.str("second")]).ok();
    assert_clean(&image);
}

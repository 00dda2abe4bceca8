//! The program called `fuse2fs`, as its callers call it: Apptainer (with descriptors, in a user
//! namespace, in front), scripts, and mount(8) by the type `fuse.fuse2fs`. Skipped with a message
//! if there is no FUSE.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};

use crate::fakeroot::NOBODY;
use crate::mounted::{Mount, can_mount};
use crate::run::{
    Lab, Ran, STETFS, assert_clean, debugfs, has, stetfs, tool, unmount_by, wait_until,
};

/// A volume, a mount point, and the program by its other name.
struct Fuse2fs {
    m: Mount,
    program: String,
}

impl Fuse2fs {
    fn new() -> Option<Self> {
        can_mount().then(|| Self::of(Mount::new()))
    }

    fn of(m: Mount) -> Self {
        let program = m.lab.str("fuse2fs");
        symlink(STETFS, &program).unwrap();
        Self { m, program }
    }

    fn run(&self, args: &[&str]) -> Ran {
        tool(&self.program, args)
    }

    #[track_caller]
    fn up(&self, options: &str) -> Ran {
        let ran = self.run(&[&self.m.image, &self.m.dir, "-o", options]);
        assert_eq!(ran.code, 0, "{ran:#?}");
        assert!(self.m.is_mounted());
        ran
    }
}

#[test]
fn it_mounts_goes_to_the_background_and_unmounts() {
    let Some(f) = Fuse2fs::new() else { return };
    // Relative paths with blanks, from a directory that the server leaves.
    fs::rename(&f.m.image, f.m.lab.path("an image")).unwrap();
    let script = "cd \"$1\" && ./fuse2fs 'an image' mnt -o rw -o noatime";
    tool("sh", &["-c", script, "sh", &f.m.lab.str("")]).ok();
    assert!(f.m.is_mounted());
    fs::write(f.m.file("file"), "text").unwrap();
    let image = f.m.lab.str("an image");
    // It is in use, by whatever name the second one is called.
    fs::create_dir(f.m.lab.path("other")).unwrap();
    let again = f.run(&[&image, &f.m.lab.str("other")]);
    again.fails(2, &["is mounted on"]);
    // While a file is open it stays.
    let open = fs::File::open(f.m.file("file")).unwrap();
    assert_ne!(tool("fusermount3", &["-u", &f.m.dir]).code, 0);
    drop(open);
    unmount_by("fusermount3", &["-u", &f.m.dir]);
    wait_until("the image is released", || !crate::twice::is_locked(&image));
    assert_clean(&image);
    assert_eq!(debugfs(&image, "cat /file"), "text");
}

#[test]
fn it_ends_with_the_codes_of_fuse2fs() {
    let Some(f) = Fuse2fs::new() else { return };
    let (image, dir) = (f.m.image.as_str(), f.m.dir.as_str());
    f.run(&["-h"]).fails(1, &["usage: fuse2fs", "fakeroot"]);
    f.run(&[image, dir, "--helpfull"]).fails(1, &["usage"]);
    f.run(&["-V"]).fails(0, &["fuse2fs: stetfs "]);
    f.run(&[]).fails(1, &["missing ext4 device/image"]);
    f.run(&[image]).fails(1, &["no mount point"]);
    f.run(&[image, dir, "-o", "frobnicate"])
        .fails(1, &["frobnicate"]);
    f.run(&[image, dir, "-o", "ro,uid=7"])
        .fails(1, &["uid=7", "fakeroot"]);
    f.run(&["/none", dir]).fails(2, &["/none"]);
    let noise = f.m.lab.str("noise");
    fs::write(&noise, vec![7; 1 << 20]).unwrap();
    f.run(&[&noise, dir]).fails(2, &["noise"]);
    f.run(&[image, "/none"]).fails(32, &["/none"]);
    // A volume with a feature that nobody knows.
    crate::run::debugfs_write(image, &["ssv feature_incompat 0x40000002"]);
    f.run(&[image, dir]).fails(3, &["disk.img"]);
    assert!(!f.m.is_mounted());
}

#[test]
fn the_lock_file_is_there_while_the_mount_is() {
    let Some(f) = Fuse2fs::new() else { return };
    let lock = f.m.lab.str("a,lock");
    let option = format!("lockfile={}", lock.replace(',', "\\,"));
    f.up(&option);
    assert_eq!(
        fs::metadata(&lock).unwrap().permissions().mode() & 0o777,
        0o400
    );
    fs::create_dir(f.m.lab.path("other")).unwrap();
    let other = f.m.lab.volume_named("other.img", &[]);
    let args = [other.as_str(), &f.m.lab.str("other"), "-o", &option];
    f.run(&args).fails(32, &["lock file", "exists"]);
    f.m.down();
    assert!(!fs::exists(&lock).unwrap());
}

#[test]
fn the_log_names_what_means_nothing_once() {
    let Some(f) = Fuse2fs::new() else { return };
    let log = fs::File::create(f.m.lab.path("log")).unwrap();
    let words = "use_ino,attr_timeout=0,use_ino,kernel_cache,orlov,user_xattr,stripe=16";
    let mut server = Command::new(&f.program)
        .args(["-f", "-o", words, &f.m.image, &f.m.dir])
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap();
    wait_until("it is mounted", || f.m.is_mounted());
    f.m.down();
    assert!(server.wait().unwrap().success());
    let log = fs::read_to_string(f.m.lab.path("log")).unwrap();
    let told: Vec<_> = log
        .lines()
        .filter(|l| l.contains("without effect"))
        .collect();
    assert_eq!(told.len(), 1, "{log}");
    for word in [
        "use_ino",
        "attr_timeout=0",
        "kernel_cache",
        "orlov",
        "stripe=16",
    ] {
        assert_eq!(told[0].matches(word).count(), 1, "{word}: {log}");
    }
    assert!(!told[0].contains("user_xattr"), "{log}");
}

/// Leaves transactions in the journal that are not at home.
fn needs_recovery(f: &Fuse2fs) {
    f.up("rw");
    fs::write(f.m.file("synced"), "text").unwrap();
    tool("sync", &[&f.m.file("synced")]).ok();
    tool("sync", &[&f.m.dir]).ok();
    let stats = crate::run::json(&stetfs(&["stats", "--json", &f.m.dir]).ok());
    let pid = stats["server"]["pid"].as_u64().unwrap().to_string();
    assert_eq!(
        fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(),
        "fuse2fs\n"
    );
    tool("kill", &["-KILL", &pid]).ok();
    wait_until("the mount point is released", || !f.m.is_mounted());
}

#[test]
fn an_image_that_needs_recovery_is_recovered_or_left_alone() {
    let Some(f) = Fuse2fs::new() else { return };
    needs_recovery(&f);
    let before = fs::read(&f.m.image).unwrap();
    for (options, shows) in [("ro", true), ("norecovery", false)] {
        f.up(options);
        assert_eq!(fs::exists(f.m.file("synced")).unwrap(), shows, "{options}");
        assert!(fs::write(f.m.file("new"), "x").is_err(), "{options}");
        unmount_by("fusermount3", &["-u", &f.m.dir]);
        wait_until("it is released", || !crate::twice::is_locked(&f.m.image));
        assert!(
            fs::read(&f.m.image).unwrap() == before,
            "{options} has written"
        );
    }
    f.up("rw");
    assert_eq!(fs::read(f.m.file("synced")).unwrap(), b"text");
    f.m.down();
}

#[test]
fn a_volume_without_a_journal_is_written_as_fuse2fs_does() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new();
    let image = lab.str("disk.img");
    tool("mke2fs", &["-q", "-t", "ext2", &image, "16M"]).ok();
    let f = Fuse2fs::of(Mount::of(lab, image));
    f.up("rw");
    fs::write(f.m.file("file"), "text").unwrap();
    f.m.down();
    assert_eq!(debugfs(&f.m.image, "cat /file"), "text");
}

#[test]
fn a_volume_in_a_larger_file_by_its_offset() {
    let Some(f) = Fuse2fs::new() else { return };
    let whole = f.m.lab.str("whole");
    let bytes = [
        vec![7; 1 << 20],
        fs::read(&f.m.image).unwrap(),
        vec![9; 4096],
    ]
    .concat();
    fs::write(&whole, &bytes).unwrap();
    let up = |env: &[(&str, &str)], args: &[&str]| {
        let mut command = Command::new(&f.program);
        command.args(args).envs(env.iter().copied());
        assert!(command.output().unwrap().status.success(), "{args:?}");
        assert!(f.m.is_mounted());
        fs::write(f.m.file("file"), args.len().to_string()).unwrap();
        stetfs(&["umount", &f.m.dir]).ok();
    };
    up(&[], &[&whole, &f.m.dir, "-o", "offset=1048576"]);
    // Apptainer up to now has a library that shifts the calls of the C library.
    let library = f.m.lab.str("apptainer/lib/offsetpreload.so");
    let shifted = [
        ("LD_PRELOAD", library.as_str()),
        ("OFFSETPRELOAD_FILE", &whole),
        ("OFFSETPRELOAD_OFFSET", "1048576"),
    ];
    up(&shifted, &["-o", "rw", &whole, &f.m.dir]);
    let after = fs::read(&whole).unwrap();
    assert!(after[..1 << 20] == bytes[..1 << 20], "before the volume");
    assert!(after.ends_with(&[9; 4096]) && after.len() == bytes.len());
    fs::write(&f.m.image, &after[1 << 20..after.len() - 4096]).unwrap();
    assert_clean(&f.m.image);
    assert_eq!(debugfs(&f.m.image, "cat /file"), "4");
}

/// What root does in a container, done by somebody who is not root there.
const AS_ROOT: &str = "cd \"$1\" && umask 022 &&
    mkdir private && echo secret > private/f && chown 1234:5678 private/f private &&
    chmod 0 private/f private && cat private/f && echo more >> private/f &&
    chmod 4755 private/f && mkfifo private/pipe && chown 5:6 private/pipe &&
    test -x private/f && echo x > plain && ! test -x plain && rm -r theirs/gone && ls -A theirs";

fn check_as_root(image: &str) {
    assert_clean(image);
    let file = debugfs(image, "stat /private/f");
    let words: Vec<&str> = file.split_whitespace().collect();
    assert!(file.contains("Mode:  04755"), "{file}");
    let owner = words.iter().position(|w| *w == "User:").unwrap();
    assert_eq!(
        words[owner + 1..owner + 4],
        ["1234", "Group:", "5678"],
        "{file}"
    );
    assert_eq!(debugfs(image, "cat /private/f"), "secret\nmore\n");
}

/// Files of others, in the way of everybody but root.
fn of_others(f: &Fuse2fs) {
    let make = [
        "mkdir /theirs",
        "mkdir /theirs/gone",
        "sif /theirs mode 040700",
        "sif /theirs uid 77",
        "sif /theirs/gone mode 040700",
        "sif /theirs/gone uid 77",
        "mknod disk b 8 1",
        "sif / uid 4242",
    ];
    crate::run::debugfs_write(&f.m.image, &make);
}

/// Apptainer without root: in front, in a user namespace in which the user has the right to mount,
/// by descriptor, with `allow_other,fakeroot`.
#[test]
fn apptainer_in_a_user_namespace() {
    let Some(f) = Fuse2fs::new() else { return };
    if !has("unshare") || tool("unshare", &["-Urm", "true"]).code != 0 {
        eprintln!("SKIPPED: no user namespaces here");
        return;
    }
    let script = "exec 3<> \"$1\" && {
        stdbuf -oL \"$2\" -f -o allow_other,fakeroot /proc/self/fd/3 \"$3\" & server=$!; } &&
        exec 3>&- &&
        until mountpoint -q \"$3\"; do kill -0 $server || exit 9; sleep 0.025; done &&
        (sh -c \"$4\" sh \"$3\") && umount \"$3\" && wait $server";
    for map in ["-Urm", "-Um"] {
        // Without -r nobody is mapped: only the rights are there, as in Apptainer's namespace.
        let keep = if map == "-Um" {
            "--map-current-user"
        } else {
            "-r"
        };
        let args = [map, keep, "--keep-caps", "sh", "-c", script, "sh"];
        let more = [f.m.image.as_str(), &f.program, &f.m.dir, AS_USER];
        let ran = tool("unshare", &[&args[..], &more[..]].concat());
        assert_eq!(ran.code, 0, "{map}: {ran:#?}");
        assert_eq!(ran.out, "secret\n", "{map}: {ran:#?}");
        assert_clean(&f.m.image);
        crate::run::debugfs_write(&f.m.image, &["rm /f"]);
    }
}

/// In a namespace other owners cannot be named, and the kernel lets nobody write to their files.
const AS_USER: &str = "cd \"$1\" && echo secret > f && chmod 0 f && cat f && ! test -x f";

/// Apptainer with its setuid starter: it mounts, and passes the open /dev/fuse on.
#[test]
fn apptainer_passes_the_open_device() {
    let Some(f) = Fuse2fs::new() else { return };
    if !rustix::process::geteuid().is_root() || !has("python3") {
        eprintln!("SKIPPED: only root mounts for others");
        return;
    }
    of_others(&f);
    fs::set_permissions(f.m.lab.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&f.m.image, fs::Permissions::from_mode(0o666)).unwrap();
    let program = f.m.lab.str("bin/fuse2fs");
    fs::create_dir(f.m.lab.path("bin")).unwrap();
    fs::copy(STETFS, &program).unwrap();
    let args = ["-c", STARTER, &program, &f.m.image, &f.m.dir, AS_ROOT];
    for how in ["unmount", "signal"] {
        let ran = tool("python3", &[&args[..], &[how]].concat());
        assert_eq!(ran.code, 0, "{how}: {ran:#?}");
        assert_eq!(ran.out, "secret\n", "{how}: {ran:#?}");
        tool("umount", &["-l", &f.m.dir]);
        check_as_root(&f.m.image);
        // The last write was in the kernel's cache.
        assert_eq!(debugfs(&f.m.image, "cat /late"), "late");
        crate::run::debugfs_write(
            &f.m.image,
            &[
                "rm /private/f",
                "rm /private/pipe",
                "rmdir /private",
                "rm /plain",
                "rm /late",
                "mkdir /theirs/gone",
            ],
        );
    }
}

const STARTER: &str = r#"
import ctypes, os, signal, subprocess, sys
program, image, target, work, how = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id=65534,group_id=65534,allow_other"
done = libc.mount(b"fuse", target.encode(), b"fuse", 2 | 4, options.encode())
assert done == 0, ctypes.get_errno()
source = os.open(image, os.O_RDWR)
def become():
    os.dup2(source, 100); os.dup2(fuse, 101)
    os.dup2(100, 3); os.dup2(101, 4)
    os.setgroups([]); os.setgid(65534); os.setuid(65534); os.setpgid(0, 0)
words = ["-f", "-o", "allow_other,fakeroot", "/proc/self/fd/3", "/dev/fd/4"]
server = subprocess.Popen([program, *words], preexec_fn=become, pass_fds=(3, 4))
os.close(fuse); os.close(source)
def user():
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
done = subprocess.run(["sh", "-c", work, "sh", target], preexec_fn=user)
if done.returncode != 0:
    server.kill()
    sys.exit(9)
late = open(target + "/late", "w"); late.write("late"); late.flush()
if how == "unmount":
    late.close()
    assert libc.umount2(target.encode(), 0) == 0, ctypes.get_errno()
else:
    server.send_signal(signal.SIGTERM)
sys.exit(server.wait(timeout=60))
"#;

impl Fuse2fs {
    /// With the program, the mount point and the way to it for an ordinary user; `None` if there
    /// is no ordinary user here who may mount.
    fn for_nobody() -> Option<Self> {
        let mut f = Self::new()?;
        let mode = fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o777;
        if !rustix::process::geteuid().is_root() || mode != 0o666 || !has("setpriv") {
            eprintln!("SKIPPED: /dev/fuse has mode {mode:o}, not 666, or this is not root");
            return None;
        }
        fs::set_permissions(f.m.lab.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(f.m.lab.path("bin")).unwrap();
        f.program = f.m.lab.str("bin/fuse2fs");
        fs::copy(STETFS, &f.program).unwrap();
        chown(&f.m.dir, Some(65_534), Some(65_534)).unwrap();
        Some(f)
    }
}

#[test]
fn an_image_that_the_user_may_not_write_is_mounted_to_be_read() {
    let Some(f) = Fuse2fs::for_nobody() else {
        return;
    };
    fs::write(f.m.lab.path("f"), "text").unwrap();
    stetfs(&["cp", &f.m.lab.str("f"), &format!("{}:/", f.m.image)]).ok();
    fs::set_permissions(&f.m.image, fs::Permissions::from_mode(0o644)).unwrap();
    let before = fs::read(&f.m.image).unwrap();
    let script = "\"$1\" \"$2\" \"$3\" -o rw && cat \"$3/f\" && ! touch \"$3/new\" &&
        fusermount3 -u \"$3\" && \"$1\" \"$2\" \"$3\" -o ro && fusermount3 -u \"$3\"";
    let command = ["sh", "-c", script, "sh"];
    let args = [f.program.as_str(), &f.m.image, &f.m.dir];
    let ran = tool("setpriv", &[&NOBODY[..], &command, &args].concat());
    assert_eq!((ran.code, ran.out.as_str()), (0, "text"), "{ran:#?}");
    // Only who wanted to write is told.
    let notice = "source write-protected, mounted read-only";
    assert_eq!(ran.err.matches(notice).count(), 1, "{ran:#?}");
    assert!(ran.err.contains("Read-only file system"), "{ran:#?}");
    assert!(fs::read(&f.m.image).unwrap() == before);
}

/// An ordinary user, by fusermount3.
#[test]
fn fakeroot_for_an_ordinary_user() {
    let Some(f) = Fuse2fs::for_nobody() else {
        return;
    };
    of_others(&f);
    chown(&f.m.image, Some(65_534), Some(65_534)).unwrap();
    let script = "\"$1\" \"$2\" \"$3\" -o fakeroot,dev,suid && sh -c \"$4\" sh \"$3\" &&
        stat -c %F \"$3/disk\" && ! head -c 1 \"$3/disk\" && fusermount3 -u \"$3\"";
    let command = ["sh", "-c", script, "sh"];
    let args = [f.program.as_str(), &f.m.image, &f.m.dir, AS_ROOT];
    let ran = tool("setpriv", &[&NOBODY[..], &command, &args].concat());
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.out.starts_with("secret\n"), "{ran:#?}");
    assert!(ran.out.contains("block special file"), "{ran:#?}");
    wait_until("it is released", || !crate::twice::is_locked(&f.m.image));
    check_as_root(&f.m.image);
    let disk = debugfs(&f.m.image, "stat /disk");
    assert!(disk.contains("Type: block special"), "{disk}");
    assert!(
        !fs::metadata(&f.m.image)
            .unwrap()
            .file_type()
            .is_block_device()
    );
    assert_eq!(fs::metadata(&f.m.image).unwrap().uid(), 65_534);
}

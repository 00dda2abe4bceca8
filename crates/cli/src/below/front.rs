//! `stetfs mount -o front=kernel`: the kernel's ext4 on a device below which a scheme commits.
//!
//! The server of the device is started first, and shows it as a file in a directory of its own
//! under `/run/stetfs`. A loop device takes the file, and the kernel mounts ext4 on that. Whatever
//! unmounts it, umount(8) or `stetfs umount`, ends everything: the loop device goes with its last
//! user, the server with the loop device, and it leaves a plain ext4 image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stetfs::MountOptions;
use stetfs_below::WRITE_THROUGH;
use stetfs_fuse::FILE_NAME;
use stetfs_fuse::mountinfo::{self, MountEntry};
use stetfs_sys::loop_ioctl;

use super::stay::{self, Stay};
use crate::args::Mount;
use crate::export::loops::{Place, attach};
use crate::failure::{Explain, Failure, Result};
use crate::mounts::{backing_file, fact};
use crate::part;
use crate::start::{EXIT_MOUNT_FAILED, check, launch};

/// The word that chooses this way to mount.
const FRONT: &str = "front=";
/// Options of the server; all others are the kernel's.
const OURS: [&str; 8] = [
    "scheme",
    "nvm",
    "nvm-new",
    "memory",
    "direct",
    "nodirect",
    "dax",
    "durability",
];
/// Lets each flush of the image take so many microseconds longer: for measurements.
const FLUSH: &str = "x-stetfs.flush-us=";
/// How often it is looked whether a server has finished.
const POLL: Duration = Duration::from_millis(10);

/// Whether the options ask for the kernel's file system.
///
/// # Errors
/// They ask for a front that there is not.
pub(crate) fn is_asked(options: &[String]) -> Result<bool> {
    match options
        .iter()
        .rev()
        .find_map(|word| word.strip_prefix(FRONT))
    {
        None | Some("fuse") => Ok(false),
        Some("kernel") => Ok(true),
        Some(other) => Err(Failure::new(format!(
            "unknown mount option \"{FRONT}{other}\": use {FRONT}fuse or {FRONT}kernel"
        ))
        .exit(crate::failure::EXIT_USAGE)),
    }
}

/// Mounts the image by the kernel's ext4 on a device of ours.
///
/// # Errors
/// Whatever a mount needs is missing; the server or the kernel refuses.
pub(crate) fn mount(args: &Mount, verbose: u8) -> Result<()> {
    check(&args.image, &args.dir)?;
    part::check_writable(&args.image)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(format!(
            "mount option \"{FRONT}kernel\" needs root: the kernel itself mounts the volume"
        )));
    }
    if stetfs_fuse::is_in_private_namespace() {
        eprintln!(
            "stetfs: {FRONT}kernel in a container: unmount before it is killed, or the kernel may \
                wait for the server, and sync(2) of the whole machine with it"
        );
    }
    let (ours, mut kernels) = sort(&args.options);
    let stay = args.foreground.then(Stay::begin).transpose()?;
    let place = Place::make()?;
    // Then jbd2 writes nothing home that is not in its journal, and flushes say nothing new.
    let named = MountOptions::parse(&ours.join(","));
    let passes = named.is_ok_and(|options| super::passes(&options));
    let write_through = mode_of(&kernels) == Some("journal") && !passes;
    start_server(args, &place, &ours, write_through, verbose)?;
    let device = attach(&place, loop_ioctl::AUTOCLEAR)?;
    if write_through {
        // Words of the caller come later, and count.
        kernels.splice(..0, WRITE_THROUGH.map(str::to_owned));
    }
    let mounted = mount_kernel(&device.path, &kernels, &args.dir);
    // From here on the loop device goes with its last user: the mount, or nobody.
    drop(device.file);
    mounted?;
    if !args.quiet {
        let scheme = scheme_in(&place.dir).unwrap_or_else(|| "?".to_owned());
        println!(
            "stetfs: {} is mounted on {} by the kernel's ext4, on {}, scheme {scheme} below",
            args.image.display(),
            args.dir.display(),
            device.path.display()
        );
    }
    let Some(stay) = stay else { return Ok(()) };
    let stats = stats_of(&place.dir.join(FILE_NAME)).unwrap_or_default();
    let server = stats["server"]["pid"].as_i64();
    let server = server.and_then(|pid| i32::try_from(pid).ok());
    stay.until_over(&device.path, &args.dir, server.unwrap_or_default())
}

/// Answers a remount. mount(8) passes the options of /etc/fstab, and those to change. The kernel's
/// ext4 takes its own; the server goes on as it was started, and what would change it is refused.
///
/// # Errors
/// There is no such mount on `dir`; an option would change the server; the kernel refuses.
pub(crate) fn remount(dir: &Path, options: &[String], fake: bool) -> Result<()> {
    let shown = dir.display();
    let Some((entry, file)) = standing(dir) else {
        return Err(Failure::new(format!(
            "{shown}: not mounted with {FRONT}kernel"
        )));
    };
    let stats = stats_of(&file).unwrap_or_default();
    let scheme = stats["scheme"].as_str().unwrap_or("?");
    let started = stats["options"].as_str().unwrap_or_default();
    let (ours, kernels) = sort(options);
    let is_there = |word: &String| {
        started.split(',').any(|there| there == word)
            || word.strip_prefix("scheme=") == Some(scheme)
    };
    let data = mode_of(&kernels).filter(|mode| {
        let others = ["journal", "ordered", "writeback"];
        let mut others = others.iter().filter(|other| *other != mode);
        others.any(|other| entry.has(&format!("data={other}")))
    });
    let fixed = ours.iter().filter(|word| !is_there(word)).cloned();
    let fixed: Vec<_> = fixed
        .chain(data.map(|mode| format!("data={mode}")))
        .collect();
    if !fixed.is_empty() {
        return Err(Failure::new(format!(
            "{shown}: a remount does not change {}; it is mounted with scheme={scheme},{}",
            fixed.join(","),
            entry.options
        ))
        .advise("unmount it, and mount it with these options"));
    }
    if fake {
        return Ok(());
    }
    mount_kernel(&entry.source, &kernels, dir)
}

/// The server's options and the kernel's.
fn sort(options: &[String]) -> (Vec<String>, Vec<String>) {
    let words = options.iter().filter(|word| !word.starts_with(FRONT));
    words.cloned().partition(|word| is_ours(word))
}

/// Whether an option is the server's.
fn is_ours(word: &str) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    OURS.contains(&name) || stetfs_schemes::find_option(name).is_some()
}

/// The kernel's mode: the last word counts.
fn mode_of(kernels: &[String]) -> Option<&str> {
    kernels
        .iter()
        .rev()
        .find_map(|word| word.strip_prefix("data="))
}

fn flush_us(options: &[String]) -> Option<&str> {
    options.iter().find_map(|word| word.strip_prefix(FLUSH))
}

fn start_server(
    args: &Mount,
    place: &Place,
    ours: &[String],
    write_through: bool,
    verbose: u8,
) -> Result<()> {
    let program = std::env::current_exe().during(|| "this program's own file".to_owned())?;
    let mut server = Command::new(program);
    server
        .args(["below", "--server", "--until-closed"])
        .args(write_through.then_some("--write-through"))
        .args(flush_us(&args.options).map(|us| format!("--flush-us={us}")))
        .args((0..verbose).map(|_| "-v"));
    if !ours.is_empty() {
        server.arg("-o").arg(ours.join(","));
    }
    if let Some(log) = &args.log {
        server.arg("--log").arg(log);
    }
    server.arg("--").arg(&args.image).arg(&place.dir);
    launch(server)
}

fn mount_kernel(device: &Path, options: &[String], dir: &Path) -> Result<()> {
    let mut mount = Command::new("mount");
    mount.args(["-t", "ext4"]);
    if !options.is_empty() {
        mount.arg("-o").arg(options.join(","));
    }
    let done = mount
        .arg(device)
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .during(|| "mount(8)".to_owned())?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.trim().trim_start_matches("mount: ");
    Err(
        Failure::new(format!("the kernel refused to mount it: {said}"))
            .advise("dmesg may say why".to_owned())
            .exit(EXIT_MOUNT_FAILED),
    )
}

/// The scheme below the device that is exported in a directory.
pub(crate) fn scheme_in(dir: &Path) -> Option<String> {
    let stats = stats_of(&dir.join(FILE_NAME))?;
    stats["scheme"].as_str().map(str::to_owned)
}

/// What the server of an exported file says.
fn stats_of(file: &Path) -> Option<serde_json::Value> {
    let stats = stetfs_fuse::query_stats(file).ok()?;
    serde_json::from_str(&stats).ok()
}

/// The exported file below the kernel's mount on `dir`, if there is one.
pub(crate) fn exported_below(dir: &Path) -> Option<PathBuf> {
    standing(dir).map(|(_, file)| file)
}

/// The kernel's mount on `dir`, and the exported file below it, if there is one.
fn standing(dir: &Path) -> Option<(MountEntry, PathBuf)> {
    let dir = mountinfo::resolve(dir).ok()?;
    let entry = mountinfo::mounted_on(&dir).ok()??;
    let file = backing_file(&entry)?;
    let exported = mountinfo::mounted_on(file.parent()?).ok()??;
    // Another loop device outlives the mount, and the server with it.
    let is_ours = exported.is_stetfs() && fact(&entry, "autoclear")? == "1";
    is_ours.then_some((entry, file))
}

/// Says what the kernel has found wrong with a volume that it has mounted.
pub(crate) fn problem(above: &MountEntry) -> Option<String> {
    let device = above.source.file_name()?;
    let path = Path::new("/sys/fs/ext4").join(device).join("errors_count");
    let errors: u64 = fs::read_to_string(path).ok()?.trim_end().parse().ok()?;
    (errors > 0).then(|| {
        let device = above.source.display();
        format!("the kernel has found errors (dmesg, {device}): unmount it, and stetfs fsck IMAGE")
    })
}

/// Unmounts the kernel's ext4 from `dir` and waits until the server of `file` has left a plain
/// image.
///
/// # Errors
/// It is in use, or the server takes too long.
pub(crate) fn umount(dir: &Path, file: &Path, lazy: bool, patience: Duration) -> Result<()> {
    let stats = stats_of(file);
    let image = stats.and_then(|stats| stats["server"]["image"].as_str().map(PathBuf::from));
    stay::umount(dir, lazy)?;
    if lazy {
        return Ok(());
    }
    let Some(image) = image else {
        return Ok(());
    };
    let started = Instant::now();
    let is_there = || {
        let served = file.parent().map(mountinfo::mounted_on);
        let served = matches!(served, Some(Ok(Some(ref entry))) if MountEntry::is_stetfs(entry));
        served || crate::mounts::is_locked(&image).unwrap_or(false)
    };
    while is_there() {
        if started.elapsed() >= patience {
            let (shown, waited) = (image.display(), started.elapsed().as_secs());
            return Err(Failure::new(format!(
                "unmounted, but the server of {shown} is still writing after {waited} s"
            ))
            .advise("it goes on in the background; the image is complete when it ends"));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

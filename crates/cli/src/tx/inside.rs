//! The second process of a transaction. It has mounts of its own, in which overlayfs lies over the
//! directory. It runs the command there, and says how the command ended.
//!
//! An upper layer may not lie below its own lower one. So a layer on the volume takes two overlays:
//! an inner one, read-only, of the directory alone, and an outer one of the inner one and the
//! layer. (Kernels stack at most two overlays, so the volume's directory may not be part of an
//! overlay itself.) With a layer in memory one overlay is enough, and each copy of a file takes
//! fewer requests. A layer between them hides the transaction's own place by a whiteout.
//!
//! The overlay that is written to is `volatile`: nothing that the command writes need be durable
//! before all of it is, so its fsyncs cost nothing. All that it writes reaches the server before
//! the overlay is gone. The kernel's FUSE writes a file's pages when the file is closed or
//! unmapped; a layer in memory is handed over then (`memory.rs`).
//!
//! Paths in mount options are relative, so that no directory's name can be read as an option.

use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::Signal;
use stetfs_fuse::tx::layer::plan::{PLACE, UPPER};
use stetfs_sys::namespace::unshare_mounts;

use super::ending::Interrupt;
use super::memory::Memory;
use super::place::{MOUNTS, WORK, named, open_lock};
use crate::args::{Layer, Tx};
use crate::failure::{Explain, Failure, Result};
use crate::ran::{self, failed, in_words};

/// How long processes that the command leaves behind may take to end.
const MOMENT: Duration = Duration::from_millis(500);

pub(super) fn run(args: &Tx, name: &str) -> Result<ExitCode> {
    run_in_view(args, name).map_err(ran::around)?;
    Ok(ExitCode::SUCCESS)
}

fn run_in_view(args: &Tx, name: &str) -> Result<()> {
    // If the first process dies, the command ends as if this one had got a signal.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let interrupt = Interrupt::listen()?;
    let dir = &args.dir;
    let mut lock = open_lock(&dir.join(PLACE))?;
    let before = std::env::current_dir();
    let is_ours = unshare()?;
    std::env::set_current_dir(dir)?;
    let memory = mount(args, name, is_ours)?;
    let mut command = Command::new(&args.words[0]);
    command.args(&args.words[1..]);
    match before {
        // Enter it again by its path, which leads into the overlay if it is below the directory.
        Ok(before) => {
            std::env::set_current_dir("/")?;
            command.current_dir(before);
        }
        Err(_) => std::env::set_current_dir("/")?,
    }
    let mut child = command.spawn().map_err(|e| ran::not_run(&args.words, &e))?;
    let status = interrupt.wait(&mut child)?;
    let is_full = memory.as_ref().is_some_and(Memory::is_full);
    leave(dir)?;
    match memory {
        Some(memory) if status.success() => memory.hand_over()?,
        // The full layer may be why the command failed.
        Some(_) if is_full => full().tell(),
        _ => {}
    }
    writeln!(lock, "{name} {}", end(status))?;
    Ok(())
}

fn full() -> Failure {
    failed("the layer in memory was full when the command ended")
        .advise("give it more (--layer-size), or keep it on the volume (--layer volume)")
}

/// Says how a process ended.
fn end(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    }
}

/// Makes a mount namespace that only this process and its children see. Returns true if mounts are
/// made with the rights of the machine's root. An ordinary user gets a user namespace as well, in
/// which the user has the same number.
fn unshare() -> Result<bool> {
    match unshare_mounts(false) {
        Ok(()) => {
            let map = fs::read_to_string("/proc/self/uid_map")?;
            let mut words = map.split_ascii_whitespace();
            // Only the first user namespace maps all numbers.
            return Ok(words.nth(2) == Some("4294967295"));
        }
        Err(Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare_mounts(true).map_err(|e| no_view("a namespace of users", e))?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    Ok(false)
}

fn no_view(what: &str, e: Errno) -> Failure {
    failed(format!(
        "cannot make {what} for the command: {}",
        in_words(e)
    ))
    .advise(
        "this takes root, or a kernel that lets ordinary users have namespaces and mount overlayfs \
            in them (Linux 5.11); some systems forbid it: see the kernel's messages (dmesg)",
    )
}

/// Mounts the overlays over the working directory; returns the layer if it is in memory.
fn mount(args: &Tx, name: &str, is_root: bool) -> Result<Option<Memory>> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let mounts = format!("{PLACE}/{MOUNTS}");
    let (none, at) = (MountFlags::empty(), Path::new(&mounts));
    let size = args.layer_size.map(|size| format!(",size={}", size.0));
    let options = CString::new(format!("mode=700{}", size.unwrap_or_default()))?;
    let tmpfs = rustix::mount::mount("stetfs-tx", at, "tmpfs", none, &*options);
    tmpfs.map_err(|e| no_view("a tmpfs", e))?;
    let above = at.join("above");
    fs::create_dir(&above)?;
    let kind = FileType::CharacterDevice;
    rustix::fs::mknodat(CWD, above.join(PLACE), kind, Mode::empty(), 0)?;
    let how = if is_root { "" } else { ",userxattr" };
    let overlay = |options: String, flags, target: &str| {
        let options = CString::new(options + how)?;
        let mounted = rustix::mount::mount("stetfs-tx", target, "overlay", flags, &*options);
        mounted.map_err(|e| no_view("overlayfs", e))
    };
    let seen = format!("{mounts}/above:.");
    let (lower, layer, memory) = match args.layer {
        Layer::Volume => {
            let inner = format!("{mounts}/inner");
            fs::create_dir(&inner)?;
            overlay(format!("lowerdir={seen}"), MountFlags::RDONLY, &inner)?;
            (inner, PLACE, None)
        }
        Layer::Memory => {
            let name = named(name).ok_or(Errno::INVAL)?;
            let memory = Memory::make(&args.dir, name, at, is_root)?;
            (seen, &*mounts, Some(memory))
        }
    };
    // With `userxattr` these two are off and must not be named.
    let off = if is_root {
        ",metacopy=off,redirect_dir=off"
    } else {
        ""
    };
    let options = format!(
        "lowerdir={lower},upperdir={layer}/{UPPER},workdir={layer}/{WORK},index=off,volatile{off}"
    );
    overlay(options, none, ".")?;
    Ok(memory)
}

/// Unmounts the overlay. A process that still used it could go on changing what is being made
/// durable.
fn leave(dir: &Path) -> Result<()> {
    let until = Instant::now() + MOMENT;
    loop {
        match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) if Instant::now() < until => sleep(Duration::from_millis(5)),
            Err(Errno::BUSY) => break,
            Err(e) => return Err(e).during(|| dir.display().to_string()),
        }
    }
    let mut users = users();
    let more = users.len().saturating_sub(5);
    users.truncate(5);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Err(failed(format!(
        "{}: the command has ended, but left processes that use it: {}{more}; nothing was changed",
        dir.display(),
        users.join(", ")
    ))
    .advise("let the command wait for what it starts"))
}

/// Returns the processes that see these mounts.
fn users() -> Vec<String> {
    let view = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let (own, me) = (view("self"), std::process::id().to_string());
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_user = |pid: &String| *pid != me && own.is_some() && view(pid) == own;
    let is_pid = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
    names
        .filter(is_pid)
        .filter(is_user)
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} ({})", name.trim())
        })
        .collect()
}

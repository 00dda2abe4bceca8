//! The volume as mke2fs makes it, for arguments that only mke2fs knows.

use std::path::Path;
use std::process::{Command, Stdio};

use super::sizes::MIB;
use crate::args::Mkfs;
use crate::failure::{Explain, Failure, Result};
use crate::identity::{self, Uuid};
use crate::{called, e2fsprogs};

/// Tries the arguments, and writes nothing.
pub(super) fn check(args: &Mkfs, size: u64, journal: u64) -> Result<()> {
    let mut tool = e2fsprogs::command("mke2fs")?;
    tool.arg("-n");
    arguments(&mut tool, args, &args.image, size, journal)?;
    run_tool(&mut tool, args, false)
}

/// Makes the volume.
pub(super) fn make(args: &Mkfs, target: &Path, size: u64, journal: u64) -> Result<()> {
    let mut tool = e2fsprogs::command("mke2fs")?;
    arguments(&mut tool, args, target, size, journal)?;
    run_tool(&mut tool, args, true)?;
    match &args.scheme {
        Some(scheme) => carry(scheme, target),
        None => Ok(()),
    }
}

fn arguments(
    tool: &mut Command,
    args: &Mkfs,
    target: &Path,
    size: u64,
    journal: u64,
) -> Result<()> {
    let block = args.block_size.0;
    // -F: mke2fs must not ask about a file; `check_overwrite` has looked.
    tool.args(["-q", "-F", "-t", &args.kind, "-I", "256"]);
    tool.args(["-b", &block.to_string()]);
    if !args
        .extra
        .iter()
        .any(|arg| arg.starts_with("-J") || arg.contains("^has_journal"))
    {
        tool.args(["-J", &format!("size={}", journal / MIB)]);
    }
    if let Some(seconds) = identity::source_date_epoch()? {
        // What mke2fs 1.47 calls it.
        tool.env("E2FSPROGS_FAKE_TIME", seconds.to_string());
    }
    let mut extended = Vec::new();
    let user = rustix::process::geteuid();
    if !user.is_root() {
        // The user who makes a volume can write to its root directory.
        let group = rustix::process::getegid();
        extended.push(format!("root_owner={}:{}", user.as_raw(), group.as_raw()));
    }
    if let Some(Uuid(seed)) = &args.hash_seed {
        extended.push(format!("hash_seed={}", called::uuid(seed)));
    }
    if !extended.is_empty() {
        tool.args(["-E", &extended.join(",")]);
    }
    if let Some(Uuid(uuid)) = &args.uuid {
        tool.args(["-U", &called::uuid(uuid)]);
    }
    if let Some(label) = &args.label {
        tool.args(["-L", label]);
    }
    tool.args(&args.extra)
        .arg("--")
        .arg(target)
        .arg((size / block).to_string());
    Ok(())
}

/// Notes the scheme in the volume's default mount options.
fn carry(scheme: &str, target: &Path) -> Result<()> {
    let mut tool = e2fsprogs::command("tune2fs")?;
    tool.arg("-E").arg(format!("mount_opts=scheme={scheme}"));
    let output = tool
        .arg(target)
        .stdin(Stdio::null())
        .output()
        .during(|| "tune2fs".to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!(
        "{}: tune2fs could not set its scheme: {}",
        target.display(),
        said.trim()
    )))
}

/// Runs mke2fs. Passes its warnings on if `warns`, and makes its error ours.
fn run_tool(tool: &mut Command, args: &Mkfs, warns: bool) -> Result<()> {
    tracing::debug!(command = ?tool, "running");
    let output = tool
        .stdin(Stdio::null())
        .output()
        .during(|| "mke2fs".to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with("mke2fs 1."))
        .collect();
    if output.status.success() {
        said.iter()
            .filter(|_| warns)
            .for_each(|line| eprintln!("mke2fs: {line}"));
        return Ok(());
    }
    // After a wrong option mke2fs prints its whole usage.
    let words = said
        .iter()
        .take_while(|l| !l.starts_with("Usage:"))
        .copied()
        .collect::<Vec<_>>()
        .join("; ");
    let words = words
        .split_once("mke2fs: ")
        .map_or(words.as_str(), |(_, words)| words);
    let failure = Failure::new(format!(
        "{}: mke2fs could not make the volume: {words}",
        args.image.display()
    ));
    Err(if args.extra.is_empty() {
        failure
    } else {
        failure.advise("look at the arguments after `--`; see mke2fs(8)")
    })
}

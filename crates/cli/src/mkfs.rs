//! `stetfs mkfs`: makes a volume with mke2fs.
//!
//! The formatter is mke2fs alone; what is here chooses the arguments, sets the size of an image
//! file, and refuses to destroy what is there already.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};

use stetfs_media::nand::NandFile;

use crate::args::Mkfs;
use crate::failure::{Explain, Failure, Result};
use crate::flash::loan::Loan;
use crate::holds::{self, Holds};
use crate::info::VolumeInfo;
use crate::mounts;
use crate::size::Size;
use crate::{disk, e2fsprogs, output};

const MIB: u64 = 1 << 20;

/// The smallest volume with a journal: mke2fs gives none to fewer than 2,048 blocks.
const JOURNAL_BLOCKS_MIN: u64 = 1024;
const VOLUME_BLOCKS_MIN: u64 = 2 * JOURNAL_BLOCKS_MIN;

/// The largest journal that is chosen unasked.
const JOURNAL_MAX: u64 = 256 * MIB;

pub(crate) fn run(args: &Mkfs) -> Result<()> {
    let image = &args.image;
    let shown = image.display();
    check_arguments(args)?;
    let mut tool = e2fsprogs::command("mke2fs")?;

    let existed = image.exists();
    if existed {
        check_overwrite(args)?;
    } else {
        holds::check_new(image)?;
    }
    let loan = Loan::blank(image)?;
    let size = wanted_size(args, existed, loan.as_ref()).during(|| shown.to_string())?;
    if existed && loan.is_none() {
        // A wrong argument must not cost what is there.
        let mut trial = e2fsprogs::command("mke2fs")?;
        trial.arg("-n");
        mke2fs_arguments(&mut trial, args, image, size);
        run_tool(&mut trial, args, false)?;
    }
    if loan.is_none() {
        set_size(args, existed, size).during(|| shown.to_string())?;
    }
    let target = loan.as_ref().map_or(image.as_path(), Loan::path);
    mke2fs_arguments(&mut tool, args, target, size);
    let made = run_tool(&mut tool, args, true)
        .and_then(|()| {
            args.scheme
                .as_deref()
                .map_or(Ok(()), |name| carry(name, target))
        })
        .and_then(|()| loan.map_or(Ok(()), |loan| loan.give_back().during(|| shown.to_string())))
        .and_then(|()| VolumeInfo::read(image));
    match made {
        Ok(volume) if args.json => output::json(&volume),
        Ok(volume) => output::line(format_args!("made {shown}: {}", volume.summary())),
        Err(e) => {
            if !existed {
                // What was begun is no volume; an error here changes nothing about the failure that
                // is told.
                let _ = fs::remove_file(image);
            }
            Err(e)
        }
    }
}

fn check_arguments(args: &Mkfs) -> Result<()> {
    if ![1024, 2048, 4096].contains(&args.block_size.0) {
        return Err(Failure::new(format!(
            "a block size of {} bytes is not supported",
            args.block_size.0
        ))
        .advise("choose 1K, 2K or 4K")
        .exit(2));
    }
    if let Some(name) = &args.scheme {
        stetfs_schemes::find(name)
            .or_advise(|| "see the list: stetfs schemes".to_owned())
            .map_err(|f| f.exit(2))?;
    }
    if let Some(label) = args.label.as_ref().filter(|l| l.len() > 16) {
        return Err(Failure::new(format!("the label \"{label}\" is longer than 16 bytes")).exit(2));
    }
    Ok(())
}

/// Refuses what must not be overwritten.
fn check_overwrite(args: &Mkfs) -> Result<()> {
    let image = &args.image;
    let kind = image
        .metadata()
        .during(|| image.display().to_string())?
        .file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::new(format!(
            "{} is neither a file nor a block device",
            image.display()
        )));
    }
    mounts::check_unused(image)?;
    if args.force {
        return Ok(());
    }
    match contents(image)? {
        None => Ok(()),
        Some(what) => Err(Failure::new(format!("{} holds {what}", image.display()))
            .advise("overwrite it with --force; everything in it will be lost")),
    }
}

/// What the image holds; `None` when it is empty. A NAND part holds what is on its device.
fn contents(image: &Path) -> Result<Option<Holds>> {
    if NandFile::is_at(image) {
        holds::what_on(&*disk::look_at(image)?)
    } else {
        holds::what(image)
    }
}

/// The volume's size in bytes. A part has the size that it has.
fn wanted_size(args: &Mkfs, existed: bool, part: Option<&Loan>) -> Result<u64> {
    let image = &args.image;
    let no_size = || {
        Failure::new("its size is not known")
            .advise("say how large it is to be, such as --size 1G")
            .exit(2)
    };
    let block = args.block_size.0;
    let size = match (args.size, existed) {
        (Some(size), _) => size.0,
        (None, true) => capacity(image, part)?,
        (None, false) => return Err(no_size()),
    };
    if size == 0 {
        return Err(no_size());
    }
    if size / block < VOLUME_BLOCKS_MIN {
        let least = VOLUME_BLOCKS_MIN * block;
        return Err(Failure::new(format!(
            "{} is too small for a volume with a journal",
            Size(size)
        ))
        .advise(format!(
            "the least is {} with {} blocks",
            Size(least),
            Size(block)
        )));
    }
    let is_file = part.is_none() && (!existed || image.metadata()?.is_file());
    if !is_file {
        let device = capacity(image, part)?;
        if size > device {
            return Err(Failure::new(format!(
                "{} is more than the device has ({})",
                Size(size),
                Size(device)
            )));
        }
    }
    Ok(size)
}

/// Gives an image file its size (sparse).
fn set_size(args: &Mkfs, existed: bool, size: u64) -> Result<()> {
    let image = &args.image;
    if args.size.is_some() && (!existed || image.metadata()?.is_file()) {
        // Cut to nothing first, so that what is left of an older volume cannot be found in the new
        // one.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(image)?;
        file.set_len(size)?;
    }
    Ok(())
}

/// The size of a file, block device or NAND part, in bytes.
fn capacity(image: &Path, part: Option<&Loan>) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    if let Some(part) = part {
        return Ok(part.size());
    }
    Ok(File::open(image)?.seek(SeekFrom::End(0))?)
}

/// A sixteenth of the volume: every byte goes through the journal, and a checkpoint must not follow
/// each few commits.
fn journal_size(volume: u64, block: u64) -> u64 {
    (volume / 16).clamp(JOURNAL_BLOCKS_MIN * block, JOURNAL_MAX)
}

fn mke2fs_arguments(tool: &mut Command, args: &Mkfs, target: &Path, size: u64) {
    let block = args.block_size.0;
    let journal = args
        .journal_size
        .map_or_else(|| journal_size(size, block), |s| s.0);
    // -F: not to ask about a file; what must not be overwritten was looked at above.
    tool.args(["-q", "-F", "-t", &args.kind, "-I", "256"]);
    tool.args(["-b", &block.to_string()]);
    if !args
        .extra
        .iter()
        .any(|arg| arg.starts_with("-J") || arg.contains("^has_journal"))
    {
        tool.args(["-J", &format!("size={}", journal.div_ceil(MIB))]);
    }
    let user = rustix::process::geteuid();
    if !user.is_root() {
        // Who makes a volume can write to it.
        let group = rustix::process::getegid();
        tool.args([
            "-E",
            &format!("root_owner={}:{}", user.as_raw(), group.as_raw()),
        ]);
    }
    if let Some(label) = &args.label {
        tool.args(["-L", label]);
    }
    tool.args(&args.extra)
        .arg("--")
        .arg(target)
        .arg((size / block).to_string());
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

/// Runs mke2fs; its warnings are passed on if `warns`, its error becomes ours.
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
    // It prints all it knows after a wrong option.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_a_sixteenth_within_bounds() {
        assert_eq!(journal_size(16 * MIB, 4096), 4 * MIB);
        assert_eq!(journal_size(16 * MIB, 1024), MIB);
        assert_eq!(journal_size(1 << 30, 4096), 64 * MIB);
        assert_eq!(journal_size(1 << 40, 4096), 256 * MIB);
    }
}

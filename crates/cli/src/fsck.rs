//! `stetfs fsck`: recovers the journal with our own code, then lets e2fsck judge and repair.

use std::path::Path;
use std::process::ExitCode;

use crate::args::Fsck;
use crate::failure::{Explain, Failure, Result};
use crate::image;
use crate::info::VolumeInfo;
use crate::{e2fsprogs, mounts, output};

/// fsck(8): operational error.
const EXIT_OPERATION: u8 = 8;
/// fsck(8): usage or syntax error.
pub(crate) const EXIT_USAGE: u8 = 16;
/// fsck(8): cancelled by the user, here by a signal.
const EXIT_CANCELLED: u8 = 32;

pub(crate) fn run(args: &Fsck) -> Result<ExitCode> {
    let image = &args.image;
    let operation = |f: Failure| f.exit(EXIT_OPERATION);
    if !image.exists() {
        return Err(operation(Failure::new(format!(
            "{}: no such file or device",
            image.display()
        ))));
    }
    let mut tool = e2fsprogs::command("e2fsck").map_err(operation)?;
    if !args.no_change {
        mounts::check_unused(image).map_err(operation)?;
        recover(image)?;
    }
    tool.arg("-f");
    for (given, flag) in [(args.no_change, "-n"), (args.yes, "-y"), (args.preen, "-p")] {
        tool.args(given.then_some(flag));
    }
    let status = tool
        .args(&args.extra)
        .arg("--")
        .arg(image)
        .status()
        .during(|| "e2fsck".to_owned())
        .map_err(operation)?;
    let code = status.code().map_or(EXIT_CANCELLED, |c| {
        u8::try_from(c).unwrap_or(EXIT_OPERATION)
    });
    Ok(ExitCode::from(code))
}

/// Replays the journal and finishes orphans. What cannot be recovered is told and left to e2fsck.
fn recover(image: &Path) -> Result<()> {
    let Ok(before) = VolumeInfo::read(image) else {
        // Not even a superblock: e2fsck looks for its copies.
        return Ok(());
    };
    if !before.needs_recovery && before.first_orphan == 0 {
        return Ok(());
    }
    let shown = image.display();
    match image::recover(image) {
        Ok(report) => output::line(format_args!(
            "{shown}: {}",
            image::recovery_in_words(&report)
        )),
        Err(e) => {
            eprintln!("stetfs: the journal was not recovered: {e}");
            eprintln!("stetfs: leaving it to e2fsck");
            Ok(())
        }
    }
}

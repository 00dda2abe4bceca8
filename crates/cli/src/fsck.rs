//! `stetfs fsck`: recovers the journal with our own code, then lets e2fsck judge and repair.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use crate::args::Fsck;
use crate::disk::Disk;
use crate::failure::{Explain, Failure, Result, TRUNCATED};
use crate::flash::loan::Loan;
use crate::image;
use crate::info::VolumeInfo;
use crate::size::Size;
use crate::{e2fsprogs, mounts, output, part};

/// fsck(8): operational error.
const EXIT_OPERATION: u8 = 8;
/// fsck(8): usage or syntax error.
pub(crate) const EXIT_USAGE: u8 = 16;
/// fsck(8): cancelled by the user, here by a signal.
const EXIT_CANCELLED: u8 = 32;

pub(crate) fn run(args: &Fsck) -> Result<ExitCode> {
    let image = &args.image;
    let operation = |f: Failure| f.exit(EXIT_OPERATION);
    if !part::file_of(image).exists() {
        return Err(operation(Failure::new(format!(
            "{}: no such file or device",
            image.display()
        ))));
    }
    let mut tool = e2fsprogs::command("e2fsck").map_err(operation)?;
    check_whole(args).map_err(operation)?;
    if !args.no_change {
        mounts::check_unused(image).map_err(operation)?;
        recover(args)?;
    } else if let Some(mount) = mounts::mount_of(image).map_err(operation)? {
        let dir = mount.dir.display();
        eprintln!(
            "stetfs: the volume is mounted on {dir}: changes under way will look like damage"
        );
    }
    tool.arg("-f").args(how_to_repair(args));
    let loan = Loan::of(image, args.no_change).map_err(operation)?;
    let given = match &loan {
        Some(loan) => loan.path().to_owned(),
        None => part::for_e2fsprogs(image).map_err(operation)?,
    };
    let status = tool
        .args(&args.extra)
        .arg("--")
        .arg(given)
        .status()
        .during(|| "e2fsck".to_owned())
        .map_err(operation)?;
    if let Some(loan) = loan.filter(|_| !args.no_change) {
        let given = loan.give_back().during(|| image.display().to_string());
        given.map_err(operation)?;
    }
    let code = status.code().map_or(EXIT_CANCELLED, |c| {
        u8::try_from(c).unwrap_or(EXIT_OPERATION)
    });
    Ok(ExitCode::from(code))
}

/// Fails if the image is shorter than its volume: a repair would make the loss final. With -n,
/// looking is allowed.
fn check_whole(args: &Fsck) -> Result<()> {
    let missing = Disk::open(&args.image).map_or(0, |disk| disk.missing());
    if missing == 0 {
        return Ok(());
    }
    let shown = args.image.display();
    let what = format!(
        "{shown}: {} of the volume are missing at its end",
        Size(missing)
    );
    if args.no_change {
        eprintln!("stetfs: {what}: {TRUNCATED}");
        return Ok(());
    }
    Err(Failure::new(what).advise(TRUNCATED))
}

/// Returns the option that tells e2fsck how to ask. It asks only on a terminal; elsewhere it
/// repairs what is safe.
fn how_to_repair(args: &Fsck) -> Option<&'static str> {
    if args.no_change {
        Some("-n")
    } else if args.yes {
        Some("-y")
    } else if args.preen || !std::io::stdin().is_terminal() {
        Some("-p")
    } else {
        None
    }
}

/// Replays the journal and finishes orphans. If that fails, says so and leaves the volume to
/// e2fsck, which refuses a log that it does not know unless the user has given that log up.
fn recover(args: &Fsck) -> Result<()> {
    let image = &args.image;
    let Ok(before) = VolumeInfo::read(image) else {
        // There is not even a superblock; e2fsck looks for its copies.
        return Ok(());
    };
    if !before.needs_recovery && before.first_orphan == 0 {
        return Ok(());
    }
    let shown = image.display();
    match image::recover(image, args.nvm.as_deref()) {
        Ok(report) => output::line(format_args!(
            "{shown}: {}",
            image::recovery_in_words(&report)
        )),
        Err(e) => {
            eprintln!("stetfs: the journal was not recovered: {e}");
            let disk = Disk::open(image)?;
            if disk.has_private_log() {
                if args.forget_log {
                    return forget_log(image, &disk);
                }
                eprintln!(
                    "stetfs: if the log is lost for good, --forget-log repairs the volume without \
                        it"
                );
            }
            eprintln!("stetfs: leaving it to e2fsck");
            Ok(())
        }
    }
}

/// Gives up the log that only the volume's scheme can read, and says so.
fn forget_log(image: &Path, disk: &Disk) -> Result<()> {
    let shown = image.display();
    let owner = disk.private_log_owner();
    let dev = part::open_device(image)?;
    stetfs::forget_private_log(&*dev).during(|| shown.to_string())?;
    dev.close().during(|| shown.to_string())?;
    let scheme = owner.as_deref().unwrap_or("(unknown)");
    eprintln!(
        "stetfs: {shown}: GIVEN UP: the changes that scheme {scheme} had committed but not \
        written home"
    );
    eprintln!(
        "stetfs: LOST: the newest writes, even those that fsync confirmed: whole files, names, and \
            parts of files, which now hold old content, or old and new content mixed"
    );
    eprintln!(
        "stetfs: e2fsck repairs the structure of the rest, but cannot tell which files lost \
            something"
    );
    Ok(())
}

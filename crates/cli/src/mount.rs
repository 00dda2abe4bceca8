//! `stetfs mount` and the helper `mount.fuse.stetfs`.
//!
//! In the background there are two processes: the one that the user called starts this program
//! again with `--server` and waits until the mount stands; that one mounts and serves.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use stetfs::MountReport;
use stetfs_fuse::background::{self, StartError, Waiting};
use stetfs_fuse::{Ended, FuseOptions, Options, Standing, Transport, mountinfo};

use crate::args::{Mount, MountHelper};
use crate::failure::{Explain, Failure, Result};
use crate::image;
use crate::logging::Log;

/// mount(8): wrong invocation or permissions.
pub(crate) const EXIT_USAGE: u8 = 1;
/// mount(8): the mount failed.
pub(crate) const EXIT_MOUNT_FAILED: u8 = 32;

/// How long a mount waits for the server of an earlier one that has been unmounted and still
/// commits.
pub(crate) const RELEASE_WAIT: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &Mount, verbose: u8) -> Result<()> {
    let options = parse(&args.options)?;
    if args.server || args.foreground {
        return serve(args, &options, verbose);
    }
    check(&args.image, &args.dir)?;
    start_server(args, verbose)
}

/// Called by mount(8), or by mount.fuse3 as `stetfs IMAGE DIR -o ...`.
pub(crate) fn run_helper(args: &MountHelper) -> Result<()> {
    let options = if args.sloppy {
        known(&args.options)
    } else {
        args.options.clone()
    };
    let parsed = parse(&options).map_err(|f| f.exit(EXIT_USAGE))?;
    if options.iter().any(|o| o == "remount") {
        return remount(args, &parsed).map_err(|f| f.exit(EXIT_MOUNT_FAILED));
    }
    check(&args.image, &args.dir).map_err(|f| f.exit(EXIT_MOUNT_FAILED))?;
    if args.fake {
        return Ok(());
    }
    let (image, dir) = (args.image.clone(), args.dir.clone());
    let mount = Mount {
        image,
        dir,
        options,
        foreground: false,
        log: None,
        server: false,
        quiet: true,
    };
    start_server(&mount, args.verbose).map_err(|f| f.exit(EXIT_MOUNT_FAILED))
}

/// mount(8) hands in the options that the mount has, those of /etc/fstab, and those that are to
/// change.
fn remount(args: &MountHelper, options: &Options) -> Result<()> {
    let entry = mountinfo::resolve(&args.dir).and_then(|dir| mountinfo::mounted_on(&dir));
    let entry = entry.ok().flatten();
    let is_so = |option: &str| entry.as_ref().is_some_and(|entry| entry.has(option));
    // mount(8) may have taken them from /etc/fstab, so they are no mistake.
    let fixed: Vec<&str> = args
        .options
        .iter()
        .map(String::as_str)
        .filter(|option| !FuseOptions::can_change_live(option) && !is_so(option))
        .collect();
    if !fixed.is_empty() {
        eprintln!(
            "stetfs: {}: a remount does not change {}; that takes an unmount",
            args.dir.display(),
            fixed.join(",")
        );
    }
    if args.fake {
        return Ok(());
    }
    Ok(stetfs_fuse::remount(&args.dir, &options.fuse)?)
}

fn parse(options: &[String]) -> Result<Options> {
    Options::parse(&options.join(","))
        .or_advise(|| "see the list of mount options: stetfs mount --help".to_owned())
        .and_then(|options| check_scheme(&options).map(|()| options))
        .map_err(|f| f.exit(crate::failure::EXIT_USAGE))
}

/// What can be said of the scheme and its options before anything is opened: nothing, where the
/// volume has the choice.
fn check_scheme(options: &Options) -> Result<()> {
    if !options.core.names_scheme() {
        return Ok(());
    }
    let about = stetfs_schemes::find(&options.core.scheme)?.about;
    let wishes = stetfs_scheme::SchemeOptions {
        data: None,
        extra: options.core.scheme_options.clone(),
    };
    Ok(wishes.check_known(about)?)
}

/// The options without those that nobody knows (mount -s).
fn known(options: &[String]) -> Vec<String> {
    options
        .iter()
        .filter(|o| Options::parse(o).is_ok())
        .cloned()
        .collect()
}

/// What can be said before a server is started. The mount point is looked at by the server, which
/// may find a dead mount on it.
pub(crate) fn check(image: &Path, dir: &Path) -> Result<()> {
    image.metadata().during(|| image.display().to_string())?;
    match dir.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(
                Failure::new(format!("{}: there is no such directory", dir.display())).advise(
                    format!("make the mount point first: mkdir {}", dir.display()),
                ),
            )
        }
        _ => Ok(()),
    }
}

/// Starts the server process of a volume.
fn start_server(args: &Mount, verbose: u8) -> Result<()> {
    let program = std::env::current_exe().during(|| "this program's own file".to_owned())?;
    let mut server = Command::new(program);
    server
        .arg("mount")
        .arg("--server")
        .args((0..verbose).map(|_| "-v"))
        .args(args.quiet.then_some("--quiet"));
    if let Some(log) = &args.log {
        server.arg("--log").arg(log);
    }
    if !args.options.is_empty() {
        server.arg("-o").arg(args.options.join(","));
    }
    server.arg("--").arg(&args.image).arg(&args.dir);
    launch(server)
}

/// Starts a server process and waits for its mount.
pub(crate) fn launch(server: Command) -> Result<()> {
    match background::start(server) {
        Ok(()) => Ok(()),
        // It has said why.
        Err(StartError::Failed { code }) => {
            Err(Failure::said().exit(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1)))
        }
        Err(e) => Err(e.into()),
    }
}

/// Mounts and serves, until the mount is gone and the image clean.
fn serve(args: &Mount, options: &Options, verbose: u8) -> Result<()> {
    let log_file = args.log.as_deref().map(open_log).transpose()?;
    let log = Log::start(verbose);
    let image = args
        .image
        .canonicalize()
        .during(|| args.image.display().to_string())?;
    let dir = stetfs_fuse::check_dir(&args.dir)?;
    stetfs_fuse::prepare_process(Some(options.core.memory));
    stetfs_fuse::wait_for_release(&image, RELEASE_WAIT);
    let (fs, report) = image::mount(&image, options.core.clone())?;
    let mut fuse = options.fuse.clone();
    fuse.read_only |= report.read_only;
    tell(args, options, &report);
    let ready = |standing: Standing| {
        if !standing.hears_syncs && !args.quiet && !options.fuse.read_only {
            eprintln!(
                "stetfs: sync(1) does not reach this mount: what must be durable needs fsync \
                    (`sync FILE`); {}",
                if options.fuse.commit_given {
                    "the rest is committed as `commit=` and `dirty_expire=` say"
                } else {
                    "the rest is committed once a second"
                }
            );
        }
        if !args.server {
            return Ok(Waiting::nobody());
        }
        let waiting = background::detach(log_file)?;
        log.detach(args.log.is_some());
        Ok(waiting)
    };
    let ended = stetfs_fuse::serve(&fs, &image, &dir, &fuse, ready)?;
    drop(fs);
    match ended {
        Ended::Unmounted => tracing::info!("{}: unmounted", image.display()),
        Ended::Signal(signal) => {
            tracing::info!("{}: unmounted after signal {signal}", image.display())
        }
        Ended::Cut(signal) => tracing::warn!(
            "{}: closed after signal {signal} while files were open",
            image.display()
        ),
    }
    Ok(())
}

pub(crate) fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .during(|| path.display().to_string())
}

/// What the user should know about the mount.
fn tell(args: &Mount, options: &Options, report: &MountReport) {
    for warning in &report.warnings {
        eprintln!("stetfs: {}: {warning}", args.image.display());
    }
    if image::recovered(report) {
        eprintln!(
            "stetfs: {}: {}",
            args.image.display(),
            image::recovery_in_words(report)
        );
    }
    if !args.quiet {
        let access = if report.read_only {
            "read-only"
        } else {
            "read-write"
        };
        let data = report
            .data
            .map_or_else(String::new, |mode| format!(", data={}", mode.name()));
        let survives = report
            .survives
            .map_or_else(String::new, |survives| format!(", {survives}"));
        let remaps = report
            .remaps
            .map_or_else(String::new, |means| format!(", remaps by {means}"));
        let (image, dir) = (args.image.display(), args.dir.display());
        eprintln!(
            "stetfs: mounting {image} on {dir}: {access}, scheme {}{data}{survives}{remaps}",
            report.scheme
        );
        let is_free = options.fuse.transport == Transport::Auto;
        if is_free && let Some(how) = stetfs_fuse::to_switch_on_io_uring() {
            eprintln!("stetfs: {how}");
        }
    }
}

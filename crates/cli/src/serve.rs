//! The server process of a mount.

use std::ffi::OsString;
use std::path::Path;

use stetfs::{Fs, MountOptions, MountReport};
use stetfs_fuse::background::{self, Waiting};
use stetfs_fuse::{
    Ended, FuseOptions, Handed, Next, OnBlock, Options, Standing, Succession, Transport,
};

use crate::args::{Mount, PartArgs};
use crate::failure::{Explain, Failure, Result};
use crate::logging::Log;
use crate::start::{open_log, wait_for_release};
use crate::{image, mounts, notify, part};

/// Returns what a server's command line says of the mount, and of its messages.
pub(crate) fn words(args: &Mount, verbose: u8) -> Vec<OsString> {
    let mut words: Vec<OsString> = (0..verbose).map(|_| "-v".into()).collect();
    if let Some(log) = &args.log {
        words.extend(["--log".into(), log.into()]);
    }
    if !args.options.is_empty() {
        words.extend(["-o".into(), args.options.join(",").into()]);
    }
    words.extend([
        "--".into(),
        args.image.clone().into(),
        args.dir.clone().into(),
    ]);
    words
}

/// Exit codes of a server, where they are not those of every command.
#[derive(Clone, Copy, Default)]
pub(crate) struct Exits {
    /// The volume cannot be mounted as it is.
    pub(crate) open: Option<u8>,
    /// There is no mount.
    pub(crate) mount: Option<u8>,
}

/// Returns what sets an exit code.
fn with(code: Option<u8>) -> impl Fn(Failure) -> Failure {
    move |failure| code.into_iter().fold(failure, Failure::exit)
}

/// Mounts and serves, until the mount is gone and the image clean.
pub(crate) fn serve(args: &Mount, options: &Options, verbose: u8, exits: Exits) -> Result<()> {
    let log_file = args.log.as_deref().map(open_log).transpose()?;
    let log = Log::start(verbose);
    let file = part::file_of(&args.image);
    file.metadata().during(|| file.display().to_string())?;
    let image = mounts::resolved(&args.image);
    let before = args.takes_over.map(Handed::read).transpose();
    let before = before.during(|| "what the program before has left".to_owned())?;
    let dir = match &before {
        Some(handed) => handed.dir(),
        None => stetfs_fuse::check_dir(&args.dir).map_err(|e| with(exits.mount)(e.into()))?,
    };
    stetfs_fuse::prepare_process(Some(options.core.memory));
    let mounted = mount(&image, &options.core, before.as_ref());
    let (fs, report) = mounted.map_err(with(exits.open))?;
    let next = next(args, options, verbose, (&image, &dir), &report);
    let mut fuse = options.fuse.clone();
    fuse.read_only |= report.read_only;
    suit_part(&mut fuse, &image);
    fuse.in_words = in_words(args, &report);
    if before.is_none() {
        tell(args, options, &report);
        warn_of_nobody(args, options, &fs);
    }
    let takes_over = before.is_some();
    let ready = |standing: Standing| {
        if takes_over {
            // Whoever has started the first server has long been told that the mount stands.
            if args.server {
                log.detach(args.log.is_some());
            }
            return Ok(Waiting::nobody());
        }
        tell_of_syncs(args, options, standing);
        if !args.server {
            note_unused(&image, options);
            notify::ready();
            return Ok(Waiting::nobody());
        }
        let waiting = background::detach(log_file)?;
        log.detach(args.log.is_some());
        note_unused(&image, options);
        Ok(waiting)
    };
    let succession = Succession { before, next };
    let ended = stetfs_fuse::serve_in_succession(&fs, &image, &dir, &fuse, succession, ready);
    let ended = ended.map_err(|e| with(exits.mount)(e.into()))?;
    drop(fs);
    tell_end(&image, ended);
    Ok(())
}

/// Mounts the volume, or goes on with the mount of the program before.
fn mount(
    image: &Path,
    options: &MountOptions,
    before: Option<&Handed>,
) -> Result<(Fs, MountReport)> {
    let Some(handed) = before else {
        wait_for_release(image);
        return image::mount(image, options.clone());
    };
    let (shown, dir) = (image.display(), handed.dir());
    tracing::info!("{shown}: taking over its mount on {}", dir.display());
    if handed.is_after_death() {
        // The kernel may be taking the dead server apart.
        wait_for_release(image);
    }
    let options = MountOptions {
        in_use: Some(handed.in_use()),
        ..options.clone()
    };
    image::mount(image, options)
}

/// Names the options that change nothing.
fn note_unused(image: &Path, options: &Options) {
    let unused = &options.core.unused;
    if !unused.is_empty() {
        tracing::warn!(
            "{}: mount options without effect here: {}",
            image.display(),
            unused.join(",")
        );
    }
}

/// Tells what sync(1) does not do.
fn tell_of_syncs(args: &Mount, options: &Options, standing: Standing) {
    if standing.hears_syncs || args.quiet || options.fuse.read_only {
        return;
    }
    eprintln!(
        "stetfs: sync(1) does not reach this mount: what must be durable needs fsync (`sync \
            FILE`); {}",
        if options.fuse.commit_given {
            "the rest is committed as `commit=` and `dirty_expire=` say"
        } else {
            "the rest is committed once a second"
        }
    );
}

fn tell_end(image: &Path, ended: Ended) {
    let image = image.display();
    match ended {
        Ended::Unmounted => tracing::info!("{image}: unmounted"),
        Ended::Signal(signal) => tracing::info!("{image}: unmounted after signal {signal}"),
        Ended::Cut(signal) => {
            tracing::warn!("{image}: closed after signal {signal} while files were open");
        }
    }
}

/// Returns how a program that takes over from this server is called; `None` if none can. The server
/// has left the directory in which relative paths mean something.
fn next(
    args: &Mount,
    options: &Options,
    verbose: u8,
    (image, dir): (&Path, &Path),
    report: &MountReport,
) -> Option<Next> {
    let is_bound = options.fuse.session.is_some() || report.is_protected;
    if args.is_last || is_bound || report.scheme == "null" {
        return None;
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let option = |word: &String| match word.strip_prefix("nvm=") {
        // The memory has the newest content by now.
        _ if word == "nvm-new" => None,
        Some(path) => Some(format!("nvm={}", absolute(Path::new(path)).display())),
        None => Some(word.clone()),
    };
    let mount = Mount {
        image: image.to_owned(),
        dir: dir.to_owned(),
        options: args.options.iter().filter_map(option).collect(),
        log: args.log.as_deref().map(absolute),
        part: PartArgs::default(),
        ..*args
    };
    let stays = if args.server {
        "--server"
    } else {
        "--foreground"
    };
    let words = words(&mount, verbose);
    Some(Box::new(move |descriptor| {
        let mut all: Vec<OsString> = ["stetfs", "mount", stays, "--quiet", "--takes-over"]
            .map(OsString::from)
            .to_vec();
        all.push(descriptor.to_string().into());
        all.extend(words.iter().cloned());
        all
    }))
}

/// Changes the options of a mount as they must be for a part of a file, and for a disk in a format
/// of its own. A loop device would stand for all of the file, and whether devices of the volume
/// work depends on who may write the file.
fn suit_part(fuse: &mut FuseOptions, image: &Path) {
    if !part::is_part(image) && !part::is_qcow2(image) {
        return;
    }
    let trusts = FuseOptions::trusts(part::file_of(image));
    fuse.on_block = OnBlock::Never;
    fuse.dev = fuse.dev.or(Some(trusts));
    fuse.suid = fuse.suid.or(Some(trusts));
}

/// Warns if the kernel will refuse access to the root directory.
fn warn_of_nobody(args: &Mount, options: &Options, fs: &Fs) {
    if let Some(owner) = owner_of_nobody(fs)
        && !options.fuse.fakeroot
    {
        eprintln!(
            "stetfs: {}: its root directory belongs to {owner}, who does not exist in this user \
                namespace: the kernel refuses access with EACCES, even to root; map that number \
                (user_namespaces(7)), give the directory another owner, or mount with -o fakeroot",
            args.image.display()
        );
    }
}

/// Returns the owner of a volume's root directory if the mount's user namespace has no such user or
/// group.
fn owner_of_nobody(fs: &Fs) -> Option<String> {
    let root = fs.getattr(fs.root()).ok()?;
    let is_there = |map: &str, id: u32| {
        let map = std::fs::read_to_string(map).unwrap_or_default();
        let mut ranges = map.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace().map(|n| n.parse::<u64>().ok());
            let (first, _, len) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some(first..first + len)
        });
        map.is_empty() || ranges.any(|range| range.contains(&id.into()))
    };
    if !is_there("/proc/self/uid_map", root.uid) {
        return Some(format!("user {}", root.uid));
    }
    let is_known = is_there("/proc/self/gid_map", root.gid);
    (!is_known).then(|| format!("group {}", root.gid))
}

/// Describes the mount: what was asked for, and what was chosen where nothing was said.
fn in_words(args: &Mount, report: &MountReport) -> String {
    let mut words = args.options.clone();
    words.push(format!("scheme={}", report.scheme));
    words.extend(report.data.map(|mode| format!("data={}", mode.name())));
    words.extend(report.read_only.then(|| "ro".to_owned()));
    words.join(",")
}

/// Tells what the user should know about the mount.
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
        let is_free = options.fuse.transport == Transport::Auto && options.fuse.survive == 0;
        if is_free && let Some(how) = stetfs_fuse::to_switch_on_io_uring() {
            eprintln!("stetfs: {how}");
        }
    }
}

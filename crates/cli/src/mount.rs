//! `stetfs mount` and the helper `mount.fuse.stetfs`.
//!
//! A mount in the background takes two processes. The one that the user called starts this program
//! again with `--server` and waits until the volume is mounted. That second process mounts and
//! serves.

use std::path::Path;
use std::process::Command;

use stetfs::{Fs, MountReport};
use stetfs_fuse::background::{self, Waiting};
use stetfs_fuse::mountinfo::{self, MountEntry};
use stetfs_fuse::options::split;
use stetfs_fuse::{Ended, FuseOptions, OnBlock, Options, Standing, Transport};

use crate::answer;
use crate::args::{Mount, MountHelper, PartArgs};
use crate::asked;
use crate::below::front;
use crate::failure::{Explain, Failure, Result};
use crate::image;
use crate::logging::Log;
use crate::mounts;
use crate::notify;
use crate::part;
use crate::start::{EXIT_MOUNT_FAILED, EXIT_USAGE, check, launch, open_log, wait_for_release};

pub(crate) fn run(args: &Mount, verbose: u8) -> Result<()> {
    if is_for_front(&args.options, &args.dir)? {
        return if is_remount(&args.options) {
            front::remount(&args.dir, &args.options, false)
        } else {
            front::mount(args, verbose)
        };
    }
    let options = parse(&args.options)?;
    if is_remount(&args.options) {
        return remount(&args.dir, &args.options, &options, false);
    }
    if args.server || args.foreground {
        return serve(args, &options, verbose, Exits::default());
    }
    check(&args.image, &args.dir)?;
    start_server(args, verbose)
}

/// Runs for mount(8), or for mount.fuse3 as `stetfs IMAGE DIR -o ...`.
pub(crate) fn run_helper(args: &mut MountHelper) -> Result<()> {
    let part = asked::take_out(&mut args.options).map_err(|f| f.exit(EXIT_USAGE))?;
    if let Some(part) = part {
        part::name(&mut args.image, part).map_err(|f| f.exit(EXIT_USAGE))?;
    }
    let start = |options, start: fn(&Mount, u8) -> Result<()>| {
        let mount = Mount {
            image: args.image.clone(),
            dir: args.dir.clone(),
            options,
            foreground: false,
            log: None,
            part: PartArgs::default(),
            server: false,
            quiet: true,
        };
        start(&mount, args.verbose).map_err(|f| f.exit(EXIT_MOUNT_FAILED))
    };
    if is_for_front(&args.options, &args.dir).map_err(|f| f.exit(EXIT_USAGE))? {
        if is_remount(&args.options) {
            let done = front::remount(&args.dir, &args.options, args.fake);
            return done.map_err(|f| f.exit(EXIT_MOUNT_FAILED));
        }
        if args.fake {
            return Ok(());
        }
        return start(args.options.clone(), front::mount);
    }
    let options = if args.sloppy {
        known(&args.options)
    } else {
        args.options.clone()
    };
    let parsed = parse(&options).map_err(|f| f.exit(EXIT_USAGE))?;
    if is_remount(&options) {
        let done = remount(&args.dir, &options, &parsed, args.fake);
        return done.map_err(|f| f.exit(EXIT_MOUNT_FAILED));
    }
    check(&args.image, &args.dir).map_err(|f| f.exit(EXIT_MOUNT_FAILED))?;
    if args.fake {
        return Ok(());
    }
    start(options, start_server)
}

fn is_remount(options: &[String]) -> bool {
    options.iter().any(|option| option == "remount")
}

/// Whether the kernel's ext4 is asked for, or is what is to be remounted.
fn is_for_front(options: &[String], dir: &Path) -> Result<bool> {
    let stands = || is_remount(options) && front::exported_below(dir).is_some();
    Ok(front::is_asked(options)? || stands())
}

/// Answers a remount. mount(8) passes the present options, those of /etc/fstab, and those to
/// change. What the server cannot change is refused, as ext4 refuses another `data=`.
fn remount(dir: &Path, words: &[String], options: &Options, fake: bool) -> Result<()> {
    let entry = mountinfo::resolve(dir).and_then(|dir| mountinfo::mounted_on(&dir));
    let Some(entry) = entry.ok().flatten().filter(MountEntry::is_stetfs) else {
        return Err(stetfs_fuse::MountError::NotMounted(dir.to_owned()).into());
    };
    let shown = dir.display();
    let server = Server::of(dir)?;
    let list = words.join(",");
    let is_change = |option: &&str| {
        !FuseOptions::can_change_live(option) && !entry.has(option) && !server.options.have(option)
    };
    let fixed: Vec<&str> = split(&list).filter(is_change).collect();
    if !fixed.is_empty() {
        return Err(Failure::new(format!(
            "{shown}: a remount cannot change {}; it is mounted with {}",
            fixed.join(","),
            server.in_words
        ))
        .advise("unmount it, and mount it with these options"));
    }
    if server.read_only && !options.fuse.read_only {
        return Err(Failure::new(format!(
            "{shown}: mounted read-only, and its server has the volume open for reading only"
        ))
        .advise("unmount it, and mount it with -o rw"));
    }
    if fake {
        return Ok(());
    }
    Ok(stetfs_fuse::remount(dir, &options.fuse)?)
}

/// How a server has the volume mounted.
pub(crate) struct Server {
    pub(crate) options: Options,
    pub(crate) in_words: String,
    /// True if the server itself is read-only, whatever the kernel's mount says.
    read_only: bool,
}

impl Server {
    /// Asks the server of the mount on `dir`.
    pub(crate) fn of(dir: &Path) -> Result<Self> {
        let stats = answer::query_stats(dir)?;
        let stats: serde_json::Value = serde_json::from_str(&stats)?;
        let in_words = stats["server"]["options"].as_str().unwrap_or_default();
        Ok(Self {
            options: Options::parse(in_words)?,
            in_words: in_words.to_owned(),
            read_only: stats["read_only"].as_bool().unwrap_or_default(),
        })
    }
}

fn parse(options: &[String]) -> Result<Options> {
    Options::parse(&options.join(","))
        .or_advise(|| "see the list of mount options: stetfs mount --help".to_owned())
        .and_then(|options| check_scheme(&options).map(|()| options))
        .map_err(|f| f.exit(crate::failure::EXIT_USAGE))
}

/// Checks the scheme and its options before anything is opened. Without scheme= the volume chooses,
/// and nothing is checked.
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

/// Returns the options that we know (mount -s).
fn known(options: &[String]) -> Vec<String> {
    split(&options.join(","))
        .filter(|o| Options::parse(o).is_ok())
        .map(str::to_owned)
        .collect()
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
    let dir = stetfs_fuse::check_dir(&args.dir).map_err(|e| with(exits.mount)(e.into()))?;
    stetfs_fuse::prepare_process(Some(options.core.memory));
    wait_for_release(&image);
    let (fs, report) = image::mount(&image, options.core.clone()).map_err(with(exits.open))?;
    let mut fuse = options.fuse.clone();
    fuse.read_only |= report.read_only;
    suit_part(&mut fuse, &image);
    fuse.in_words = in_words(args, &report);
    tell(args, options, &report);
    warn_of_nobody(args, options, &fs);
    let note = || {
        let unused = &options.core.unused;
        if !unused.is_empty() {
            tracing::warn!(
                "{}: mount options without effect here: {}",
                image.display(),
                unused.join(",")
            );
        }
    };
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
            note();
            notify::ready();
            return Ok(Waiting::nobody());
        }
        let waiting = background::detach(log_file)?;
        log.detach(args.log.is_some());
        note();
        Ok(waiting)
    };
    let ended = stetfs_fuse::serve(&fs, &image, &dir, &fuse, ready);
    let ended = ended.map_err(|e| with(exits.mount)(e.into()))?;
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

/// Changes the options of a mount as they must be for a part of a file. A loop device would stand
/// for all of it, and whether devices of the volume work depends on who may write the file.
fn suit_part(fuse: &mut FuseOptions, image: &Path) {
    if !part::is_part(image) {
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
        let is_free = options.fuse.transport == Transport::Auto;
        if is_free && let Some(how) = stetfs_fuse::to_switch_on_io_uring() {
            eprintln!("stetfs: {how}");
        }
    }
}

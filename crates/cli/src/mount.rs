//! `stetfs mount` and the helper `mount.fuse.stetfs`.
//!
//! A mount in the background takes two processes. The one that the user called starts this program
//! again with `--server` and waits until the volume is mounted. That second process mounts and
//! serves (`serve.rs`).

use std::path::Path;
use std::process::Command;

use stetfs_fuse::mountinfo::{self, MountEntry};
use stetfs_fuse::options::split;
use stetfs_fuse::{FuseOptions, Options};

use crate::answer;
use crate::args::{Mount, MountHelper, PartArgs};
use crate::asked;
use crate::below::front;
use crate::failure::{Explain, Failure, Result};
use crate::part;
use crate::serve::{Exits, serve, words};
use crate::start::{EXIT_MOUNT_FAILED, EXIT_USAGE, check, launch};

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
            takes_over: None,
            is_last: false,
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
        Self::in_stats(&serde_json::from_str(&answer::query_stats(dir)?)?)
    }

    /// Reads it in the server's statistics.
    pub(crate) fn in_stats(stats: &serde_json::Value) -> Result<Self> {
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
        .args(["mount", "--server"])
        .args(args.quiet.then_some("--quiet"))
        .args(words(args, verbose));
    launch(server)
}

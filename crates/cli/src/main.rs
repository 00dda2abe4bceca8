//! The `stetfs` command.
//!
//! `args.rs` defines the command line; each command is a module of its name. The program has
//! several names. As `mount.fuse.stetfs` or `umount.fuse.stetfs` (or with `fuseblk` for `fuse`, or
//! as `mount.stetfs`) it is the helper of mount(8) or umount(8). mount.fuse3 calls it as `stetfs
//! IMAGE DIR -o ...` for the type fuse.stetfs. As `fuse2fs` it takes that program's command line.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod answer;
mod archive;
mod args;
mod asked;
mod below;
mod beside;
mod called;
mod clock;
mod complete;
mod copy;
#[cfg(feature = "crash")]
mod crash;
mod diff;
mod disk;
mod docs;
mod drain;
mod du;
mod e2fsprogs;
mod export;
mod failure;
mod files;
mod find;
mod flash;
mod freeze;
mod fsck;
mod fuse2fs;
mod holds;
mod identity;
mod image;
mod info;
mod journal;
mod list;
mod logging;
mod mkfs;
mod mount;
mod mounts;
mod names;
mod notify;
mod output;
mod owners;
mod part;
mod partitions;
mod place;
mod progress;
mod ran;
mod recover;
mod repeatable;
mod resize;
mod schemes;
mod serve;
mod shown;
mod size;
mod start;
mod stats;
mod tar;
mod tree;
mod tx;
mod umount;
mod unlike;
mod upgrade;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, MountHelper, Nand, NandCommand, UmountHelper};
use failure::{Failure, Result};
use logging::Log;

/// Block contents are allocated and freed by the thousand; this allocator takes a fifth of the
/// processor time that the standard one takes for it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The type as a user may say it: `mount -t stetfs`.
const FS_TYPE_SHORT: &str = "stetfs";

fn main() -> ExitCode {
    // A server's companion process is this program too.
    stetfs_fuse::run_if_asked();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments
        .first()
        .map(Path::new)
        .and_then(Path::file_name)
        .unwrap_or_default();
    let is_helper = |verb: &str| {
        let types = [
            FS_TYPE_SHORT,
            stetfs_fuse::FS_TYPE,
            stetfs_fuse::FS_TYPE_BLOCK,
        ];
        types
            .iter()
            .any(|kind| name == format!("{verb}.{kind}").as_str())
    };
    let result = if name == fuse2fs::NAME {
        fuse2fs::run(&arguments)
    } else if is_helper("mount") || is_mount_fuse_call(&arguments) {
        mount_helper(arguments)
    } else if is_helper("umount") {
        umount_helper(arguments)
    } else {
        command(&arguments)
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.code)
        }
    }
}

/// True for `stetfs IMAGE DIR [-o OPTIONS]`: the first word is no command, and the first two words
/// name something to mount and a place for it.
fn is_mount_fuse_call(arguments: &[OsString]) -> bool {
    let [_, image, dir, ..] = arguments else {
        return false;
    };
    let is_command = Cli::command().find_subcommand(image).is_some();
    !is_command
        && !image.as_encoded_bytes().starts_with(b"-")
        && part::file_of(Path::new(image)).exists()
        && Path::new(dir).is_dir()
}

fn mount_helper(arguments: Vec<OsString>) -> Result<ExitCode> {
    let mut args = parse_helper::<MountHelper>(arguments)?;
    mount::run_helper(&mut args)?;
    Ok(ExitCode::SUCCESS)
}

fn umount_helper(arguments: Vec<OsString>) -> Result<ExitCode> {
    let args = parse_helper::<UmountHelper>(arguments)?;
    Log::start(args.verbose);
    umount::run_helper(&args).map_err(|f| f.exit(start::EXIT_MOUNT_FAILED))?;
    Ok(ExitCode::SUCCESS)
}

/// As `Parser::parse`, with mount(8)'s exit code for wrong arguments.
fn parse_helper<P: Parser>(arguments: Vec<OsString>) -> Result<P> {
    P::try_parse_from(arguments).map_err(|e| {
        if !e.use_stderr() {
            e.exit();
        }
        Failure::new(e.to_string().trim_end().trim_start_matches("error: ")).exit(start::EXIT_USAGE)
    })
}

/// Reads the command line; the exit code if it is wrong.
fn parsed(arguments: &[OsString]) -> Result<Cli, ExitCode> {
    Cli::try_parse_from(arguments).map_err(|e| {
        // fsck(8) has a code of its own for a wrong command line.
        let is_fsck = arguments.get(1).is_some_and(|a| a == OsStr::new("fsck"));
        if e.use_stderr() && is_fsck {
            // If standard error is closed, there is nobody to tell.
            let _ = e.print();
            return ExitCode::from(fsck::EXIT_USAGE);
        }
        e.exit()
    })
}

fn command(arguments: &[OsString]) -> Result<ExitCode> {
    let mut cli = match parsed(arguments) {
        Ok(cli) => cli,
        Err(code) => return Ok(code),
    };
    asked::name_parts(&mut cli.command)?;
    if let Command::Mount(args) = &cli.command {
        return mount::run(args, cli.verbose).map(|()| ExitCode::SUCCESS);
    }
    if let Command::Nand(Nand {
        command: NandCommand::Export(args),
    }) = &cli.command
    {
        return flash::export::run(args, cli.verbose).map(|()| ExitCode::SUCCESS);
    }
    if let Command::Below(args) = &cli.command {
        return below::run(args, cli.verbose).map(|()| ExitCode::SUCCESS);
    }
    #[cfg(feature = "crash")]
    if let Command::Crash(args) = &cli.command {
        // Explored volumes are cut again and again, and log a lot; show it only with -v.
        if cli.verbose > 0 {
            Log::start(cli.verbose);
        }
        return crash::run(args);
    }
    Log::start(cli.verbose);
    match &cli.command {
        Command::Fsck(args) => return fsck::run(args),
        Command::Diff(args) => return diff::run(args),
        Command::Mkfs(args) => mkfs::run(args),
        Command::Mount(_) | Command::Below(_) => unreachable!("taken above"),
        #[cfg(feature = "crash")]
        Command::Crash(_) => unreachable!("taken above"),
        Command::Lab(args) => return Err(beside::run("stetfs-lab", &args.args)),
        Command::Tx(args) => return tx::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Upgrade(args) => upgrade::run(args),
        Command::Freeze(args) => return freeze::run(args),
        Command::Mounts(args) => list::run(args),
        Command::Drain(args) => drain::run(args),
        Command::Recover(args) => recover::run(args),
        Command::Info(args) => info::run(args),
        Command::Journal(args) => journal::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Wear(args) => stats::wear::run(args),
        Command::Ls(args) => files::ls(args),
        Command::Cat(args) => files::cat(args),
        Command::Grow(args) => resize::grow(args),
        Command::Shrink(args) => resize::shrink(args),
        Command::Cp(args) => copy::run(args),
        Command::Tar(args) => tar::run(args),
        Command::Mv(args) => names::mv(args),
        Command::Ln(args) => names::ln(args),
        Command::Rm(args) => files::rm(args),
        Command::Mkdir(args) => files::mkdir(args),
        Command::Find(args) => find::run(args),
        Command::Du(args) => du::run(args),
        Command::Schemes(args) => schemes::run(args),
        Command::Nand(args) => flash::nand::run(args),
        Command::Completions(args) => complete::run(args),
        Command::Man(args) => docs::man(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

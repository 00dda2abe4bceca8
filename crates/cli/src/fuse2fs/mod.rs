//! This program called `fuse2fs`: it takes the command line of the program of that name in
//! e2fsprogs, and ends with its codes. docs/FUSE2FS.md lists the options of both.
//!
//! As with every program of libfuse, `/dev/fd/N` in place of the mount point is an open `/dev/fuse`
//! that the caller has mounted.

mod words;

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use stetfs_format::FeatureCompat;
use stetfs_fuse::Options;

use crate::args::{Mount, PartArgs};
use crate::disk::Disk;
use crate::failure::{Explain, Failure, Result};
use crate::part::{self, Wish};
use crate::serve::{self, Exits};
use crate::start::{EXIT_USAGE, launch};
use crate::{image, mounts};
use words::{Asked, SERVER};

/// The name.
pub(crate) const NAME: &str = "fuse2fs";

/// The image cannot be opened, is in use, or holds no volume.
const EXIT_NOT_OPENED: u8 = 2;
/// The volume cannot be mounted as it is.
const EXIT_NOT_SOUND: u8 = 3;
/// It could not be mounted on the mount point, or the lock file is there.
const EXIT_NOT_MOUNTED: u8 = 32;

const USAGE: &str = "\
usage: fuse2fs device/image mountpoint [options]

    -o opt,[opt...]  mount options; may be repeated
    -f               stay in the foreground
    -d               debug output (implies -f)
    -s               one thread
    -h   --help      print help
    -V   --version   print version

This is stetfs under the name of fuse2fs: it journals what it writes. Options of fuse2fs:
    -o ro, rw                  read-only mount; read-write mount (default)
    -o offset=BYTES            the volume begins at this byte
    -o fakeroot                pretend to be root for permission checks
    -o norecovery              leave the journal alone, and mount read-only
    -o kernel                  allow_other,default_permissions,suid,dev
    -o errors=continue|remount-ro|panic
    -o minixdf, bsddf          how df counts
    -o acl, noacl              access control lists are enforced (default), or not
    -o cache_size=N[KMG]       the bound of all caches together, at least 8M (default 256M)
    -o directio                bypass this machine's page cache
    -o lockfile=FILE           make FILE, or give up if it is there; remove it at the end
    -o fuse2fs_debug           say more
All options of `stetfs mount`, ext4(5), mount(8) and libfuse are taken as well; docs/FUSE2FS.md says
what each does.
";

/// Runs with these arguments; the first is the program's name.
pub(crate) fn run(arguments: &[OsString]) -> Result<ExitCode> {
    let given = &arguments[1..];
    if let Some((preload, offset)) = preloaded_offset(given) {
        return Err(run_without_preload(given, &preload, offset));
    }
    let asked = Asked::read(given)?;
    if asked.help {
        eprint!("{USAGE}");
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    if asked.version {
        eprintln!("{NAME}: stetfs {}", env!("CARGO_PKG_VERSION"));
        return Ok(ExitCode::SUCCESS);
    }
    let missing = |what: &str| Failure::new(format!("{what}; see {NAME} -h")).exit(EXIT_USAGE);
    let device = asked.device.clone();
    let device = device.ok_or_else(|| missing("missing ext4 device/image"))?;
    let dir = asked.dir.clone();
    let dir = dir.ok_or_else(|| missing("no mount point specified"))?;
    let options = Options::parse(&asked.options.join(","));
    let options = options.or_advise(|| format!("see {NAME} -h"));
    let options = options.map_err(|f| f.exit(EXIT_USAGE))?;
    if asked.foreground || asked.server {
        serve(&asked, (device, dir), options)?;
    } else {
        let program = std::env::current_exe().during(|| "this program's own file".to_owned())?;
        let mut server = Command::new(program);
        server.arg0(NAME).arg(SERVER).args(given);
        launch(server)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Mounts and serves, until the mount is gone and the image clean.
fn serve(asked: &Asked, (mut image, dir): (PathBuf, PathBuf), mut options: Options) -> Result<()> {
    let _ = rustix::thread::set_name(c"fuse2fs");
    options.fuse.session = stetfs_fuse::inherited_session(&dir);
    options.core.unused.extend(asked.unused.iter().cloned());
    let _lock = asked.lockfile.as_deref().map(Lock::take).transpose()?;
    if asked.offset > 0 {
        part::name(&mut image, Wish::Offset(asked.offset, None))?;
    }
    let mut words = asked.options.clone();
    let not_opened = |f: Failure| f.exit(EXIT_NOT_OPENED);
    let disk = Disk::open(&image).map_err(not_opened)?;
    if !options.core.read_only && is_forbidden(&image) {
        eprintln!(
            "stetfs: {}: WARNING: source write-protected, mounted read-only.",
            image.display()
        );
        words.push("ro".to_owned());
        (options.core.read_only, options.fuse.read_only) = (true, true);
    }
    let journal = FeatureCompat::HAS_JOURNAL;
    let has_journal = disk.superblock.feature_compat.contains(journal);
    if !has_journal && !options.core.read_only && !options.core.names_scheme() {
        // fuse2fs writes such volumes as it writes all.
        words.push("scheme=null".to_owned());
        (options.core.scheme, options.core.scheme_named) = ("null".to_owned(), true);
    }
    drop(disk);
    let mount = Mount {
        image,
        dir,
        options: words,
        foreground: !asked.server,
        log: None,
        part: PartArgs::default(),
        server: asked.server,
        quiet: true,
        takes_over: None,
        is_last: asked.lockfile.is_some(),
    };
    let exits = Exits {
        open: Some(EXIT_NOT_SOUND),
        mount: Some(EXIT_NOT_MOUNTED),
    };
    let verbose = if asked.debug { 2 } else { 0 };
    serve::serve(&mount, &options, verbose, exits).map_err(|failure| {
        let is_in_use = || mounts::is_locked(part::file_of(&mount.image)).unwrap_or_default();
        if failure.code == EXIT_NOT_SOUND && (is_in_use() || image::is_mounted(&mount.image)) {
            return not_opened(failure);
        }
        failure
    })
}

/// Whether this user may not write to the image. mount(8) and the newer fuse2fs mount it read-only
/// then; `stetfs mount` wants to be told so. (What nobody may write, it mounts read-only too.)
fn is_forbidden(image: &Path) -> bool {
    let opened = OpenOptions::new().write(true).open(part::file_of(image));
    opened.is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
}

/// The file of `lockfile=`, which is there while the mount is.
struct Lock(PathBuf);

impl Lock {
    fn take(file: &Path) -> Result<Self> {
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(file);
        let made = made.and_then(|_| file.canonicalize());
        let made = made.during(|| format!("the lock file {}", file.display()));
        made.map(Self).map_err(|f| f.exit(EXIT_NOT_MOUNTED))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_file(&self.0) {
            tracing::warn!("the lock file {}: {e}", self.0.display());
        }
    }
}

/// Returns the value of LD_PRELOAD without Apptainer's offsetpreload.so, and the offset that it is
/// there to bring about, if this call has it. The library shifts what the C library reads and
/// writes of one file, for programs without `offset=`. This program has it, and makes some of its
/// calls without the C library.
fn preloaded_offset(given: &[OsString]) -> Option<(OsString, u64)> {
    let preload = std::env::var_os("LD_PRELOAD")?;
    let file = std::env::var_os("OFFSETPRELOAD_FILE")?;
    let offset = std::env::var("OFFSETPRELOAD_OFFSET").ok()?.parse().ok()?;
    let is_it = |library: &&[u8]| library.ends_with(b"offsetpreload.so");
    let libraries = preload.as_bytes().split(|byte| b": ".contains(byte));
    let libraries: Vec<&[u8]> = libraries.filter(|library| !library.is_empty()).collect();
    if !libraries.iter().any(is_it) || !given.contains(&file) {
        return None;
    }
    let rest: Vec<&[u8]> = libraries.into_iter().filter(|l| !is_it(l)).collect();
    Some((OsStr::from_bytes(&rest.join(&b":"[..])).to_owned(), offset))
}

/// Runs this program anew, with the offset as an option. Returns only if that fails.
fn run_without_preload(given: &[OsString], preload: &OsStr, offset: u64) -> Failure {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => return Failure::from(e).context("this program's own file"),
    };
    let mut again = Command::new(program);
    again.arg0(NAME);
    again.arg("-o").arg(format!("offset={offset}")).args(given);
    again.env_remove("OFFSETPRELOAD_FILE");
    if preload.is_empty() {
        again.env_remove("LD_PRELOAD");
    } else {
        again.env("LD_PRELOAD", preload);
    }
    Failure::from(again.exec()).context("starting again without offsetpreload.so")
}

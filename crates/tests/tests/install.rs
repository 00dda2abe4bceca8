//! `make install`: the shared library has its versions; programs in C find it by pkg-config, and
//! SQLite by its name; cargo-c would make the same of the same Cargo.toml; and `make uninstall`
//! leaves nothing.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use stetfs_testkit::host::{Missing, needs, run, scratch};
use stetfs_testkit::image::{EXT4_4K, check};
use tempfile::TempDir;

/// What is installed, below a directory that stands for `/`.
struct Installed {
    /// The programs that were installed, and the root.
    dir: TempDir,
}

const PREFIX: &str = "/usr/local";

impl Installed {
    /// Does, without root, what `make install` does with what it has built.
    fn new() -> Result<Self, Missing> {
        let programs = ["cc", "pkg-config", "readelf", "strip", "sqlite3"];
        needs(false, false, &programs)?;
        needs(false, false, &["mke2fs", "e2fsck"])?;
        // The library is built with this test, into the same directory; the programs are built with
        // the whole workspace, into the directory above.
        let test = std::env::current_exe().expect("it runs");
        let dir = scratch().expect("a directory");
        let built = dir.path().join("built");
        fs::create_dir(&built).expect("a directory");
        let library = test.with_file_name("libstetfs_ffi.so");
        let above = test.parent().and_then(Path::parent).expect("a directory");
        for path in [library, above.join("stetfs"), above.join("stetfs-lab")] {
            if !path.is_file() {
                return Err(Missing(format!("{} is not built", path.display())));
            }
            symlink(&path, built.join(path.file_name().expect("a name"))).expect("a link");
        }
        let installed = Self { dir };
        installed.script(built.as_os_str().to_owned());
        Ok(installed)
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn script(&self, arg: OsString) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install.sh");
        let mut script = Command::new(script);
        script
            .arg(arg)
            .envs([("PREFIX", PREFIX), ("SBINDIR", "/sbin")]);
        let out = script
            .env("DESTDIR", self.root())
            .output()
            .expect("it runs");
        assert!(out.status.success(), "{out:?}");
    }

    fn lib(&self, name: &str) -> PathBuf {
        self.root().join(&PREFIX[1..]).join("lib").join(name)
    }

    /// Asks pkg-config about it.
    fn ask(&self, option: &str) -> String {
        let mut ask = Command::new("pkg-config");
        ask.env("PKG_CONFIG_PATH", self.lib("pkgconfig"));
        ask.env("PKG_CONFIG_SYSROOT_DIR", self.root());
        let out = ask.args([option, "stetfs"]).output().expect("it runs");
        assert!(out.status.success(), "{option}: {out:?}");
        String::from_utf8(out.stdout)
            .expect("text")
            .trim()
            .to_owned()
    }
}

/// Returns the library's package, as Cargo reads it.
fn package() -> Value {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../ffi/Cargo.toml");
    let args = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let args = [&args[..], &["--manifest-path", manifest]].concat();
    let out = run(env!("CARGO"), &args).expect("metadata");
    let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let mut packages = all["packages"].as_array().expect("a list").iter();
    let found = packages.find(|package| package["name"] == "stetfs-ffi");
    found.expect("the package").clone()
}

#[test]
fn the_library_has_its_versions() {
    let installed = match Installed::new() {
        Ok(installed) => installed,
        Err(missing) => return eprintln!("SKIPPED: {}: {missing}", file!()),
    };
    let package = package();
    let version = package["version"].as_str().expect("text");
    // While the major version is 0, each minor one may change what a program calls.
    let parts: Vec<&str> = version.split('.').collect();
    let compatible = match parts[..] {
        ["0", minor, _] => format!("0.{minor}"),
        [major, ..] => major.to_owned(),
        [] => unreachable!("a version has parts"),
    };
    let [file, soname] = [version, &compatible].map(|v| format!("libstetfs.so.{v}"));
    let library = installed.lib(&file);
    assert!(library.symlink_metadata().expect("a file").is_file());
    for name in [&soname, "libstetfs.so"] {
        let to = fs::read_link(installed.lib(name)).expect("a link");
        assert_eq!(to, Path::new(&file), "{name}");
    }
    let dynamic = |path: &Path| {
        let args = [Path::new("-d"), path];
        let out = run("readelf", &args).expect("a file of ELF");
        String::from_utf8(out.stdout).expect("text")
    };
    let named = dynamic(&library);
    assert!(
        named.contains(&format!("Library soname: [{soname}]")),
        "{named}"
    );

    // A program finds it as its source says.
    let dir = installed.dir.path();
    let [image, program] = ["image", "accounts"].map(|name| dir.join(name));
    EXT4_4K.make(&image, 48, 4).expect("a volume");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../ffi/examples/accounts.c");
    let flags = installed.ask("--cflags") + " " + &installed.ask("--libs");
    let mut args: Vec<OsString> = vec![source.into(), "-o".into(), program.clone().into()];
    args.extend(flags.split_whitespace().map(OsString::from));
    run("cc", &args).expect("it compiles");
    let needed = dynamic(&program);
    assert!(needed.contains(&format!("[{soname}]")), "{needed}");
    // Without the link that only a build needs.
    fs::remove_file(installed.lib("libstetfs.so")).expect("removed");
    let mut ran = Command::new(&program);
    ran.arg(&image).env("LD_LIBRARY_PATH", installed.lib(""));
    let ran = ran.output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "-10 10\n", "{ran:?}");
    check(&image).expect("it is clean");

    // SQLite takes it by each of its names.
    for name in [&soname, &file] {
        let load = format!(".load {}", installed.lib(name).display());
        let args = [
            "-init",
            "/dev/null",
            "-bail",
            ":memory:",
            &load,
            "SELECT stetfs_error() IS NULL",
        ];
        let out = run("sqlite3", &args).expect("it loads");
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "1", "{name}");
    }

    installed.script("--remove".into());
    let left = run(
        "find",
        &[
            &installed.root(),
            Path::new("!"),
            Path::new("-type"),
            Path::new("d"),
        ],
    );
    let left = left.expect("a list").stdout;
    assert_eq!(String::from_utf8_lossy(&left), "");
}

/// cargo-c makes its pkg-config file from the package's `metadata.capi`.
#[test]
fn both_pkg_config_files_say_the_same() {
    let installed = match Installed::new() {
        Ok(installed) => installed,
        Err(missing) => return eprintln!("SKIPPED: {}: {missing}", file!()),
    };
    let package = package();
    let capi = &package["metadata"]["capi"];
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let file = text(&capi["pkg_config"]["filename"]) + ".pc";
    let made = fs::read_to_string(installed.lib("pkgconfig").join(file)).expect("its name");
    let line = |key: &str| {
        let key = format!("{key}: ");
        let found = made.lines().find_map(|line| line.strip_prefix(&key));
        found.expect("a line").to_owned()
    };
    assert_eq!(line("Name"), text(&capi["pkg_config"]["name"]));
    assert_eq!(line("Description"), text(&package["description"]));
    assert_eq!(installed.ask("--modversion"), text(&package["version"]));
    let library = text(&capi["library"]["name"]);
    assert_eq!(line("Libs"), format!("-L${{libdir}} -l{library}"));
    // Headers are in no directory of their own.
    assert_eq!(capi["header"]["subdirectory"], false);
    assert_eq!(line("Cflags"), "-I${includedir}");
    let include = installed.root().join(&PREFIX[1..]).join("include");
    assert_eq!(
        installed.ask("--cflags"),
        format!("-I{}", include.display())
    );
    assert!(include.join("stetfs.h").is_file());
}

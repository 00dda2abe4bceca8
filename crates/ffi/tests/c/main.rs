//! The interface for C: the header agrees with the code, the example works, and Python can use the
//! library.
//!
//! `STETFS_LAB_WRITE=1` writes the header anew.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use stetfs_testkit::host::{needs, run, scratch};
use stetfs_testkit::image::{EXT4_4K, check};
use stetfs_testkit::skip_unless;

/// The comment at the top of the header.
const HEADER: &str = "\
/* stetfs for C: made from crates/ffi/src/c.rs by its test.
 *
 * What functions return: those of type int or int64_t give 0 or a count when they succeed, and a
 * negative error number of Linux's errno.h when they fail (-ENOENT, -ENOSPC); stetfs_message()
 * says then why, in words. Pointers that they are to fill are filled only on success. errno is left
 * alone. Paths begin at the volume's root, with or without a slash; names need not be UTF-8.
 * Everything is done as root: no permission is checked.
 */";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The library. Cargo builds it with this test, into the same directory.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    let found = test.with_file_name("libstetfs_ffi.so");
    assert!(found.is_file(), "{} is not built", found.display());
    found
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

#[test]
fn the_header_is_what_the_code_says() {
    let made = cbindgen::Builder::new()
        .with_src(here("src/c.rs"))
        .with_src(here("src/c/tree.rs"))
        .with_language(cbindgen::Language::C)
        .with_include_guard("STETFS_H")
        .with_cpp_compat(true)
        .with_documentation(true)
        .with_style(cbindgen::Style::Type)
        .with_header(HEADER)
        .generate()
        .expect("a header");
    let mut header = Vec::new();
    made.write(&mut header);
    let header = String::from_utf8(header).expect("text");
    let path = here("include/stetfs.h");
    if std::env::var_os("STETFS_LAB_WRITE").is_some() {
        std::fs::write(&path, &header).expect("a file");
    }
    let kept = std::fs::read_to_string(&path).expect("the header");
    assert!(
        kept == header,
        "{} is old: STETFS_LAB_WRITE=1",
        path.display()
    );
    for name in [
        "stetfs_open",
        "stetfs_commit",
        "STETFS_CREATE",
        "stetfs_readdir",
        "StetfsStat",
        "StetfsGroup",
    ] {
        assert!(header.contains(name), "{name}");
    }
}

#[test]
fn the_example_moves_money() {
    skip_unless!(needs(false, false, &["cc", "mke2fs", "e2fsck"]));
    let dir = scratch().expect("a directory");
    let [image, program] = ["image", "accounts"].map(|name| dir.path().join(name));
    EXT4_4K.make(&image, 48, 4).expect("a volume");
    let (source, include) = (here("examples/accounts.c"), here("include"));
    // The program looks for the library by its soname.
    let soname = dir.path().join("libstetfs.so.0.1");
    std::os::unix::fs::symlink(library(), soname).expect("a link");
    let args = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.extend([text(&include), text(&source), text(&library())]);
    args.extend([
        format!("-Wl,-rpath,{}", text(dir.path())),
        "-o".to_owned(),
        text(&program),
    ]);
    run("cc", &args).expect("it compiles");
    for round in 1..=3 {
        let out = run(&text(&program), &[&image]).expect("it runs");
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(shown, format!("{} {}\n", -10 * round, 10 * round));
        check(&image).expect("it is clean");
    }
    let missing = run(&text(&program), &["/nowhere"]).expect_err("it fails");
    assert!(
        format!("{missing:#}").contains("No such file"),
        "{missing:#}"
    );
}

#[test]
fn python_can_use_it() {
    skip_unless!(needs(false, false, &["python3", "mke2fs", "e2fsck"]));
    let dir = scratch().expect("a directory");
    let image = dir.path().join("image");
    EXT4_4K.make(&image, 48, 4).expect("a volume");
    let script = here("tests/c/library.py");
    run("python3", &[&script, &library(), &image]).expect("what it asks is answered right");
    check(&image).expect("it is clean");
}

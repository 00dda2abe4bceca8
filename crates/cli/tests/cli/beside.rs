//! `stetfs lab` becomes the program that is installed beside stetfs.

use std::fs;

use crate::run::{Lab, STETFS, tool};

#[test]
fn a_part_that_is_a_program_of_its_own() {
    let dir = Lab::new();
    let stetfs = dir.str("stetfs");
    let (script, lab) = (dir.str("script"), dir.path("stetfs-lab"));
    fs::write(&script, "#!/bin/sh\necho \"$0|$*\"\nexit 7\n").expect("a script");
    // Another process writes it: a program that this process has open for writing cannot run, nor
    // while a child of another test still has what it inherited.
    tool("install", &[STETFS, &stetfs]).ok();
    tool("install", &[&script, &dir.str("stetfs-lab")]).ok();
    let ran = tool(&stetfs, &["lab", "--help", "-x", "fig4"]);
    assert_eq!(ran.code, 7, "{ran:?}");
    assert_eq!(ran.out.trim(), format!("{}|--help -x fig4", lab.display()));
    fs::remove_file(&lab).expect("removed");
    tool(&stetfs, &["lab"]).fails(1, &["stetfs-lab", "No such file", "make install"]);
}

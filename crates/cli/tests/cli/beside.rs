//! `stetfs lab` becomes the program that is installed beside stetfs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::run::{Lab, STETFS, tool};

#[test]
fn a_part_that_is_a_program_of_its_own() {
    let dir = Lab::new();
    let stetfs = dir.str("stetfs");
    fs::copy(STETFS, &stetfs).expect("a copy");
    let lab = dir.path("stetfs-lab");
    fs::write(&lab, "#!/bin/sh\necho \"$0|$*\"\nexit 7\n").expect("a program");
    fs::set_permissions(&lab, PermissionsExt::from_mode(0o755)).expect("its mode");
    let ran = tool(&stetfs, &["lab", "--help", "-x", "fig4"]);
    assert_eq!(ran.code, 7, "{ran:?}");
    assert_eq!(ran.out.trim(), format!("{}|--help -x fig4", lab.display()));
    fs::remove_file(&lab).expect("removed");
    tool(&stetfs, &["lab"]).fails(1, &["stetfs-lab", "No such file", "make install"]);
}

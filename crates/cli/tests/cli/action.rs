//! The step for workflows of GitHub: action.yml, and the script that it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::Trial;
use crate::run::STETFS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Each input reaches the script under a name that the script knows, and there is no other.
#[test]
fn the_inputs_are_those_of_the_script() {
    let action = fs::read_to_string(root().join("action.yml")).unwrap();
    let script = fs::read_to_string(root().join("packaging/action/run.sh")).unwrap();
    let inputs: Vec<&str> = action
        .lines()
        .skip_while(|line| *line != "inputs:")
        .skip(1)
        .take_while(|line| line.starts_with(' '))
        .filter_map(|line| line.strip_prefix("  ")?.strip_suffix(':'))
        .filter(|line| !line.starts_with(' '))
        .collect();
    assert!(inputs.len() >= 8, "{inputs:?}");
    for input in &inputs {
        let variable = format!("INPUT_{}", input.to_uppercase());
        let passed = format!("{variable}: ${{{{ inputs.{input} }}}}\n");
        assert!(action.contains(&passed), "{passed}");
        assert!(script.contains(&variable), "{variable}");
    }
    assert_eq!(action.matches("INPUT_").count(), inputs.len());
}

#[test]
fn a_workflow_shows_what_was_found() {
    let Some(trial) = Trial::new() else {
        return;
    };
    let (summary, report) = (trial.lab.str("summary.md"), trial.lab.str("report.xml"));
    let run = |program: &str, check: &str, model: &str| {
        let _ = fs::remove_file(&summary);
        let out = Command::new(root().join("packaging/action/run.sh"))
            .current_dir(trial.lab.path(""))
            .env("STETFS", STETFS)
            .env("TMPDIR", trial.lab.path(""))
            .env("GITHUB_STEP_SUMMARY", &summary)
            .env("INPUT_RUN", program)
            .env("INPUT_CHECK", check)
            .env("INPUT_MODEL", model)
            .env("INPUT_SETUP", "echo old >{dir}/f")
            .env("INPUT_BUDGET", "1000")
            .env("INPUT_ARGUMENTS", "--size 16M --jobs 2")
            .env("INPUT_REPORT", &report)
            .output()
            .unwrap();
        let told = String::from_utf8(out.stdout).unwrap();
        trial.nothing_is_left();
        let shown = fs::read_to_string(&summary).unwrap();
        for line in shown.lines().skip(2) {
            assert!(line.starts_with("    "), "{line}");
        }
        (out.status.code(), told, shown)
    };
    let models = "posix ext4-ordered";
    let check = "grep -qx 'old\\|100%' {dir}/f";
    let (code, told, shown) = run("echo 100% >{dir}/g; mv {dir}/g {dir}/f", check, models);
    assert_eq!(code, Some(1), "{told}");
    let error = told.lines().last().unwrap();
    assert!(
        error.starts_with("::error title=Power cuts::finding 1, "),
        "{told}"
    );
    assert!(
        shown.contains("    posix: ") && shown.contains("    ext4-ordered: "),
        "{shown}"
    );
    assert!(
        fs::read_to_string(&report).unwrap().contains("<failure"),
        "{told}"
    );

    let whole = "echo 100% >{dir}/g; sync {dir}/g; mv {dir}/g {dir}/f";
    let (code, told, shown) = run(whole, check, models);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        !told.contains("::error") && shown.contains("0 fail"),
        "{told}"
    );
    // Nothing in an input is a part of the script.
    let (code, told, _) = run(whole, check, "$(touch hurt) `touch hurt`");
    assert_eq!(code, Some(2), "{told}");
    assert!(!trial.lab.path("hurt").exists());
}

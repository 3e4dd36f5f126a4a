//! Rendered Jobs as Kubernetes' own types have them: Debian's kubectl reads each into its types and writes it again, and what it does
//! not know is then gone.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use slipway::farm::{self, Input, InputFile, Settings};

use crate::Bench;

/// Path of the test's files inside the sandbox.
const PLACE: &str = "/farm";
/// A variable that `kubectl set env` adds to the Job: it reads the Job into its types, and prints it with the variable.
const PROBE: &str = "SLIPWAY_PROBE";

pub(crate) fn jobs_are_those_of_the_api(bench: &Bench) -> Result<()> {
    let folder = bench.folder()?;
    let settings = Settings {
        image: "registry.example/slipway:1".to_owned(),
        namespace: Some("images".to_owned()),
        claim: "images".to_owned(),
        credentials: Some("bucket".to_owned()),
        signing_key: Some("signing".to_owned()),
        cache: Some(("s3://cache".to_owned(), vec!["ci:AAAA".to_owned()])),
        buckets: Some(("https://s3.example".to_owned(), "eu-1".to_owned())),
        environment: vec![("https_proxy".to_owned(), "http://proxy:3128".to_owned())],
        cpus: 2,
        memory: 4096,
        disk: 20480,
    };
    let file = InputFile {
        content: b"x = 1\n".to_vec(),
        executable: false,
    };
    let input = Input {
        outputs: vec!["metal-1.0".to_owned()],
        recipe: "a.toml".to_owned(),
        files: [("a.toml".to_owned(), file)].into(),
    };
    let text = farm::render(&[input], &settings)?;
    let job = text.split("---\n").last().context("no document")?;
    fs::write(folder.path().join("job.yaml"), job)?;
    let read = |file: &str, change: &str| -> Result<Value> {
        let out = bench
            .tools
            .sandbox()
            .bind(folder.path(), PLACE)
            .command("/usr/bin/kubectl")
            .args(["set", "env", "--local", "-o", "json", "-f"])
            .args([&format!("{PLACE}/{file}"), change])
            .run()?;
        Ok(serde_json::from_slice(&out)?)
    };
    let typed = read("job.yaml", &format!("{PROBE}=1"))?;
    let mut report = cluster::report::Report::default();
    let node = cluster::yaml::document(job, 0, &mut report).context("not YAML")?;
    let ours = node.content.value();
    missing(&ours, &typed, "job")?;
    // The probe sees a field that no type has.
    let wrong = job.replace("backoffLimit", "backofLimit");
    fs::write(folder.path().join("wrong.yaml"), &wrong)?;
    let typed = read("wrong.yaml", &format!("{PROBE}=1"))?;
    let node = cluster::yaml::document(&wrong, 0, &mut report).context("not YAML")?;
    let error = missing(&node.content.value(), &typed, "job");
    ensure!(error.is_err_and(|error| error.to_string().contains("backofLimit")));
    Ok(())
}

/// Holds that everything of `ours` is in `typed`, with the same value.
fn missing(ours: &Value, typed: &Value, at: &str) -> Result<()> {
    match (ours, typed) {
        (Value::Object(ours), Value::Object(typed)) => {
            for (name, value) in ours {
                let at = format!("{at}.{name}");
                // An empty word is the same as none.
                let found = typed.get(name).unwrap_or(&Value::Null);
                let is_default = *found == Value::Null && *value == Value::Bool(false);
                ensure!(
                    is_default || *found != Value::Null,
                    "{at} is no field of the API"
                );
                if !is_default {
                    missing(value, found, &at)?;
                }
            }
            Ok(())
        }
        (Value::Array(ours), Value::Array(typed)) => {
            ensure!(ours.len() <= typed.len(), "{at}: {} items", typed.len());
            let mut pairs = ours.iter().zip(typed).enumerate();
            pairs.try_for_each(|(n, (ours, typed))| missing(ours, typed, &format!("{at}[{n}]")))
        }
        (ours, typed) => {
            ensure!(ours == typed, "{at}: {ours} became {typed}");
            Ok(())
        }
    }
}

//! What stands at the end of each command's help: examples, exit codes, and for the program itself the variables of the environment.

/// What stands at the end of `slipway --help`.
pub(super) const PROGRAMS_OWN: &str = "\
Examples:
  slipway demo                              a Ready node of Kubernetes in QEMU
  slipway build recipes/metal.toml          writes out/metal-node-0.1.0
  slipway run recipes/demo.toml --node n1   its console here, its disks in n1
  slipway cluster new my.toml && slipway cluster up my.toml

Environment:
  SLIPWAY_CACHE           folder of the cache [default: ~/.cache/slipway]
  SLIPWAY_CACHE_SIZE      its limit, as 20G, or none [default: that of the
                          settings, else 20G, or half of a smaller disk]
  SLIPWAY_REMOTE_CACHE    store of results that machines share
  SLIPWAY_REMOTE_CACHE_KEYS, SLIPWAY_REMOTE_CACHE_SIGNING_KEY
                          public keys that count; file of this machine's own
  SLIPWAY_SETTINGS        settings [default: ~/.config/slipway/settings.toml]
  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
  AWS_ENDPOINT_URL_S3, AWS_REGION
                          how s3:// is asked
  SLIPWAY_DEBIAN_MIRROR, SLIPWAY_DEBIAN_SECURITY_MIRROR
                          archives, if a recipe names none [default: apt's]
  SLIPWAY_DEBIAN_SNAPSHOT archive of old files [default: on the mirror's server]
  SLIPWAY_AUTH, SLIPWAY_AUTH_FILE
                          users and passwords of servers, as apt_auth.conf(5)
                          has them: the text, a file [default: apt's files]
  DOCKER_CONFIG, DOCKER_AUTH_CONFIG, REGISTRY_AUTH_FILE
                          those of registries, as docker and podman read them
  SLIPWAY_IDENTITY        age identity of the secrets of clusters
  SLIPWAY_RELEASE_SERVER, SLIPWAY_GITHUB, SLIPWAY_RELEASE_REGISTRY
                          where `release add` asks for checksums, digests
  HTTPS_PROXY, HTTP_PROXY, NO_PROXY
                          as curl reads them
  SSL_CERT_FILE, SSL_CERT_DIR
                          certificates to trust in place of the system's
  GOPROXY, GOSUMDB, GOFLAGS
                          for the Go toolchain that compiles Kubernetes
  XDG_CACHE_HOME, XDG_CONFIG_HOME
                          where caches and identities are
  NO_COLOR                reports of mistakes without colours

Exit codes:
  0    done
  1    it failed, or what was asked about is not well
  2    the command line, a recipe or a config is wrong
  130  interrupted";

/// Examples, a line each: a command, and behind two spaces what it does.
macro_rules! examples {
    ($($line:literal)*) => {
        concat!(
            "Examples:\n",
            $("  ", $line, "\n",)*
            "\nExit codes: 0 done, 1 failed, 2 command line, recipe or config wrong, 130 interrupted"
        )
    };
    // A command that also ends with 1 if it found something.
    ($($line:literal)* ; 1 is $found:literal) => {
        concat!(
            "Examples:\n",
            $("  ", $line, "\n",)*
            "\nExit codes: 0 done, 1 failed or ", $found,
            ", 2 command line, recipe or config wrong, 130 interrupted"
        )
    };
}

pub(super) const DEMO: &str = examples!(
    "slipway demo"
    "slipway demo --cpus 4 --memory 4096  on a larger machine"
    "slipway --json demo                  the verdict, with the boot's timeline"
);
pub(super) const NEW: &str = examples!(
    "slipway new mine             writes mine.toml, which extends slipway:node"
    "slipway new cloud --from gce"
);
pub(super) const BUILD: &str = examples!(
    "slipway build recipes/metal.toml             writes out/metal-node-0.1.0"
    "slipway build --set image.version=1.4        the only recipe of this folder"
    "slipway build my.toml --variant gce,metal    two of its images"
    "slipway build my.toml --dry-run              what would be fetched, and run"
    "slipway build my.toml --locked --offline     only what the lock has, from here"
);
pub(super) const RUN: &str = examples!(
    "slipway run recipes/demo.toml --node n1      its console here, its disks in n1"
    "slipway run out/demo-0.1.0 --ignition my.bu --forward 2222:22"
    "slipway run recipes/metal.toml --bus nvme --tpm"
);
pub(super) const LOCK: &str = examples!(
    "slipway lock my.toml                         keeps each pin that still fits"
    "slipway lock my.toml --renew                 chooses everything anew"
    "slipway lock my.toml --renew openssl kubelet only these; the recipe may also come last"
    "slipway lock my.toml --diff old.lock         what changed since"
    "slipway lock my.toml --vendor s3://builds/my"
    "slipway lock my.toml --locked                fails if it is out of date"
);
pub(super) const CHECK: &str = examples!(
    "slipway check recipes/node.toml"
    "slipway check --json my.toml  mistakes as objects, on stderr"
);
pub(super) const INSPECT: &str = examples!(
    "slipway inspect out/demo-0.1.0"
    "slipway --json inspect out/demo-0.1.0/disk.raw"
);
pub(super) const DIFF: &str = examples!(
    "slipway diff out/node-0.1.0 out/node-0.2.0"
    "slipway diff old/disk.raw new/disk.raw --no-files --exit-code"
    ; 1 is "with --exit-code a difference"
);
pub(super) const TIMELINE: &str = examples!(
    "slipway timeline n1                  the last boot of `slipway run --node n1`"
    "slipway timeline n1 --svg boot.svg"
    "slipway timeline timeline.jsonl --page out/demo-0.1.0/report.html"
);
pub(super) const PXE: &str = examples!("slipway pxe serve out/metal-node-0.1.0");
pub(super) const PXE_SERVE: &str = examples!(
    "slipway pxe serve out/metal-node-0.1.0       prints the URL of boot.ipxe"
    "slipway pxe serve out/metal-node-0.1.0/pxe --listen 192.0.2.1:8080"
);
pub(super) const CLUSTER: &str = examples!(
    "slipway cluster new my.toml && slipway cluster up my.toml"
    "slipway cluster kubeconfig my.toml -o admin.conf"
    "slipway cluster down my.toml"
);
pub(super) const CLUSTER_NEW: &str = examples!(
    "slipway cluster new my.toml                  and my.secrets.age beside it"
    "slipway cluster new my.toml --name prod --wizard"
);
pub(super) const JOIN_CONFIG: &str = examples!(
    "slipway cluster join-config my.toml --role control-plane -o first.ign"
    "slipway cluster join-config my.toml --role worker --fresh-token -o worker.ign"
);
pub(super) const KUBECONFIG: &str = examples!(
    "slipway cluster kubeconfig my.toml -o admin.conf"
    "slipway cluster kubeconfig my.toml --server https://192.0.2.1:6443"
);
pub(super) const UP: &str = examples!(
    "slipway cluster up my.toml                   a control plane and a worker"
    "slipway cluster up my.toml --control-planes 3 --workers 2 --memory 4096"
);
pub(super) const STATUS: &str = examples!(
    "slipway cluster status my.toml"
    ; 1 is "not all nodes Ready"
);
pub(super) const VALIDATE: &str = examples!(
    "slipway cluster validate my.toml --nodes 3 --wait 600"
    ; 1 is "not valid"
);
pub(super) const DOWN: &str = examples!(
    "slipway cluster down my.toml"
    "slipway cluster down my.toml --keep          the next `up` boots its disks again"
);
pub(super) const FARM: &str =
    examples!("slipway farm render a.toml b.toml --image r.example/slipway:v1 --claim out");
pub(super) const FARM_RENDER: &str = examples!(
    "slipway farm render a.toml b.toml --image r.example/slipway:v1 --claim out"
    "slipway farm render a.toml --image r.example/slipway:v1 --claim out --cpus 8"
    "slipway --json farm render a.toml --image r.example/slipway:v1 --claim out"
);
pub(super) const RELEASE: &str = examples!("slipway release list");
pub(super) const RELEASE_ADD: &str = examples!(
    "slipway release add 1.36.3                   needs the vendor's servers"
    "slipway release add 1.36.3 --dry-run"
);
pub(super) const RELEASE_LIST: &str = examples!("slipway release list");
pub(super) const RELEASE_SHOW: &str = examples!("slipway release show 1.36");
pub(super) const RELEASE_CHECK: &str = examples!("slipway release check");
pub(super) const CACHE: &str = examples!("slipway cache show");
pub(super) const CACHE_SHOW: &str = examples!(
    "slipway cache show"
    "slipway cache show --cache /srv/cache --json"
);
pub(super) const PRUNE: &str = examples!(
    "slipway cache prune --dry-run                only says what would go"
    "slipway cache prune --unused 3"
);
pub(super) const KEYGEN: &str = examples!("slipway cache keygen /etc/slipway/cache.key --name ci");
pub(super) const DOCTOR: &str = examples!(
    "slipway doctor"
    ; 1 is "a build cannot end here"
);
pub(super) const SCHEMA: &str = examples!(
    "slipway schema > schema.json"
    "slipway schema --markdown"
);
pub(super) const COMPLETIONS: &str =
    examples!("slipway completions bash > /etc/bash_completion.d/slipway");
pub(super) const MANUAL: &str = examples!("slipway manual build | man -l -");
pub(super) const IGNITION: &str = examples!("slipway ignition validate my.bu --files-dir .");
pub(super) const IGNITION_VALIDATE: &str = examples!(
    "slipway ignition validate my.ign"
    "slipway ignition validate my.bu --files-dir .   local files are read from here"
);
pub(super) const MERGE: &str = examples!("slipway ignition merge base.ign my.ign > all.ign");
pub(super) const FROM_BUTANE: &str =
    examples!("slipway ignition from-butane my.bu --strict -o my.ign");
pub(super) const PROGRAM: &str = examples!("slipway ignition program -o ignition");

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::{Command, CommandFactory as _, Parser as _};

    use super::super::Cli;

    /// All commands with their names, as `cluster up`; the program's own is empty.
    fn commands() -> Vec<(String, Command)> {
        let mut all = vec![(String::new(), Cli::command())];
        let mut at = 0;
        while let Some((name, command)) = all.get(at).cloned() {
            let below = command
                .get_subcommands()
                .filter(|below| !below.is_hide_set());
            all.extend(below.map(|below| {
                let name = format!("{name} {}", below.get_name());
                (name.trim_start().to_owned(), below.clone())
            }));
            at += 1;
        }
        all
    }

    /// The command lines of a help's examples, without the words behind them.
    fn examples(help: &str) -> Vec<String> {
        let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        let lines = lines.take_while(|line| line.starts_with("  "));
        let line = |line: &str| line.trim().split("  ").next().unwrap().to_owned();
        lines.map(line).collect()
    }

    #[test]
    fn every_help_has_examples_that_are_command_lines() {
        let commands = commands();
        assert!(commands.len() > 35, "{}", commands.len());
        for (name, mut command) in commands {
            let help = command.render_long_help().to_string();
            let examples = examples(&help);
            assert!(!examples.is_empty(), "{name:?} has no example:\n{help}");
            assert!(help.contains("\nExit codes:"), "{name:?} has no exit codes");
            for example in examples {
                let own = format!("slipway {name}").trim_end().to_owned() + " ";
                let is_own = format!("{example} ").replace("--json ", "").contains(&own);
                assert!(is_own, "{example:?} is no example of {name:?}");
                for line in example.split(" && ") {
                    parses(line);
                }
            }
        }
    }

    /// A line of a shell; what takes its output is not looked at.
    fn parses(line: &str) {
        let line = line.split(['>', '|']).next().unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Err(error) = Cli::try_parse_from(&words) {
            panic!("{line}\n{error}");
        }
        for word in words.iter().filter(|word| word.starts_with("recipes/")) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(word);
            assert!(path.is_file(), "{line}: there is no {word}");
        }
    }

    /// Folders that builds write have the names of the recipes here.
    #[test]
    fn outputs_in_examples_are_those_of_recipes() {
        let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes");
        let mut outputs = Vec::new();
        for entry in std::fs::read_dir(recipes).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "toml")
                && let Ok(recipe) = slipway::recipe::load(&path)
            {
                let image = recipe.image;
                outputs.push(format!("out/{}-{}", image.name, image.version));
            }
        }
        let mut seen = 0;
        for (name, mut command) in commands() {
            // Two versions of an image are compared, of which the tree has one.
            if name == "diff" {
                continue;
            }
            let help = command.render_long_help().to_string();
            let text = help.split("Examples:").nth(1).unwrap_or_default();
            for word in text
                .split_whitespace()
                .filter(|word| word.starts_with("out/"))
            {
                let folder: Vec<&str> = word.split('/').take(2).collect();
                assert!(outputs.contains(&folder.join("/")), "{name}: {word}");
                seen += 1;
            }
        }
        assert!(seen > 5, "{seen}");
    }
}

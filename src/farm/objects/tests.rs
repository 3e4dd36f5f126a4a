//! The objects are those of the API, the same for the same input, and no credential is in them.

use super::*;
use crate::farm::InputFile;

fn settings() -> Settings {
    Settings {
        image: "registry.example/slipway:1".to_owned(),
        namespace: Some("images".to_owned()),
        claim: "images".to_owned(),
        credentials: Some("bucket".to_owned()),
        signing_key: Some("signing".to_owned()),
        cache: Some(("s3://cache/slipway".to_owned(), vec!["ci:AAAA".to_owned()])),
        buckets: Some(("https://s3.example".to_owned(), "eu-1".to_owned())),
        environment: vec![("https_proxy".to_owned(), "http://proxy:3128".to_owned())],
        cpus: 2,
        memory: 4096,
        disk: 20480,
    }
}

fn file(content: Vec<u8>) -> InputFile {
    InputFile {
        content,
        executable: true,
    }
}

fn input(name: &str) -> Input {
    let output = format!("{name}-1.0");
    Input {
        outputs: vec![output],
        recipe: "recipes/a.toml".to_owned(),
        files: [
            ("recipes/a.toml", b"[image]\nname = 'a'\n".to_vec()),
            ("recipes/a.lock", b"version = 1\n".to_vec()),
            ("other/a.toml", b"x = 1\n".to_vec()),
            ("recipes/key.pgp", vec![0, 255, 1]),
        ]
        .map(|(path, content)| (path.to_owned(), file(content)))
        .into(),
    }
}

/// The documents that a YAML text has.
fn documents(text: &str) -> Vec<Value> {
    let mut report = cluster::report::Report::default();
    let parts = cluster::yaml::split(text);
    let nodes = parts.iter().filter_map(|(before, part)| {
        cluster::yaml::document(part, *before, &mut report).map(|node| node.content.value())
    });
    nodes.collect()
}

#[test]
fn each_recipe_has_its_files_and_a_job_and_rendering_is_deterministic() {
    let inputs = [input("metal"), input("A_long.name".repeat(9).as_str())];
    let text = render(&inputs, &settings()).unwrap();
    assert_eq!(text, render(&inputs, &settings()).unwrap());
    assert!(text.starts_with("# Apply this by `kubectl apply --server-side -f FILE`"));
    let found = documents(&text);
    assert_eq!(found.len(), 4);
    let list = list(&inputs, &settings()).unwrap();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("List"), &json!("v1"))
    );
    assert_eq!(list["items"], json!(found));
    for pair in found.chunks(2) {
        let [map, job] = pair else { panic!() };
        let name = map["metadata"]["name"].as_str().unwrap();
        assert_eq!(
            format!("{}-0", job["metadata"]["name"].as_str().unwrap()),
            name
        );
        let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let job_name = job["metadata"]["name"].as_str().unwrap();
        assert!(
            job_name.len() <= LONGEST && job_name.bytes().all(good),
            "{name}"
        );
        let pod = &job["spec"]["template"]["spec"];
        let source = &pod["volumes"][0]["projected"]["sources"][0]["configMap"];
        assert_eq!(source["name"], name);
        // Every file is where the recipe looks for it.
        let items = source["items"].as_array().unwrap();
        for (path, file) in &inputs[0].files {
            let item = items.iter().find(|item| item["path"] == **path).unwrap();
            let key = item["key"].as_str().unwrap();
            let text = map["data"][key]
                .as_str()
                .map(|text| text.as_bytes().to_vec());
            let bytes = map["binaryData"][key].as_str();
            let bytes = text.or_else(|| bytes.map(|text| STANDARD.decode(text).unwrap()));
            assert_eq!(bytes.unwrap(), file.content, "{path}");
            assert_eq!(item["mode"], 0o755);
        }
    }
}

#[test]
fn another_lock_is_another_job_and_two_recipes_of_one_image_are_refused() {
    let name = |input: &Input, settings: &Settings| {
        let text = render(std::slice::from_ref(input), settings).unwrap();
        documents(&text)[1]["metadata"]["name"].clone()
    };
    let (one, mut two) = (input("metal"), input("metal"));
    two.files
        .insert("recipes/a.lock".to_owned(), file(b"version = 2\n".to_vec()));
    let first = name(&one, &settings());
    assert_ne!(first, name(&two, &settings()));
    let memory = Settings {
        memory: 8192,
        ..settings()
    };
    assert_ne!(first, name(&one, &memory));
    let error = render(&[one, two], &settings()).unwrap_err().to_string();
    assert!(error.contains("both write metal-1.0"), "{error}");
}

/// What a ConfigMap holds is the API server's limit, and kubectl's own for an annotation is no limit of ours.
#[test]
fn locks_of_many_variants_are_divided_among_config_maps() {
    let mut large = input("metal");
    for variant in 0..7 {
        let lock = file(vec![b'a'; 300 << 10]);
        large
            .files
            .insert(format!("recipes/a.{variant}.lock"), lock);
    }
    // As long as a name of a file can be, and longer than a key.
    let long = format!("recipes/{}", "x".repeat(255));
    large.files.insert(long, file(b"x".to_vec()));
    let found = documents(&render(&[large.clone()], &settings()).unwrap());
    let (job, maps) = found.split_last().unwrap();
    assert_eq!(maps.len(), 3);
    let volume = &job["spec"]["template"]["spec"]["volumes"][0];
    let sources = volume["projected"]["sources"].as_array().unwrap();
    assert_eq!(sources.len(), maps.len());
    let mut paths = Vec::new();
    for (map, source) in maps.iter().zip(sources) {
        assert_eq!(map["metadata"]["name"], source["configMap"]["name"]);
        let data = map["data"].as_object().unwrap();
        let size: usize = data.values().map(|text| text.as_str().unwrap().len()).sum();
        assert!(size <= LARGEST, "{size}");
        for item in source["configMap"]["items"].as_array().unwrap() {
            let key = item["key"].as_str().unwrap();
            assert!(key.len() <= 253, "{key}");
            assert!(data.contains_key(key) || map["binaryData"][key].is_string());
            paths.push(item["path"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(paths, large.files.into_keys().collect::<Vec<_>>());
}

#[test]
fn credentials_are_references_to_secrets() {
    let text = render(&[input("metal")], &settings()).unwrap();
    let job = &documents(&text)[1];
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["envFrom"][0]["secretRef"]["name"], "bucket");
    let names: Vec<&str> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect();
    assert!(!names.iter().any(|name| name.contains("SECRET_ACCESS")));
    assert!(names.contains(&"https_proxy"), "{names:?}");
    let volumes = &job["spec"]["template"]["spec"]["volumes"];
    assert_eq!(volumes[3]["secret"]["secretName"], "signing");
    assert_eq!(volumes[3]["secret"]["defaultMode"], 0o400);
    // Without a cache there is nothing to sign.
    let plain = Settings {
        credentials: None,
        signing_key: None,
        cache: None,
        buckets: None,
        environment: Vec::new(),
        namespace: None,
        ..settings()
    };
    let text = render(&[input("metal")], &plain).unwrap();
    for word in ["SIGNING", "envFrom", "namespace", "REMOTE_CACHE", "AWS_"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

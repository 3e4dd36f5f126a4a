//! Servers and registries that want a user and a password: where these are sent, and where never.

use std::sync::Arc;

use fetch::{Login, Logins, Repository};

use super::*;

/// `joe:pass:word` in base64.
const BASIC: &str = "Basic am9lOnBhc3M6d29yZA==";

/// One login for a host and port.
#[derive(Debug)]
struct One(String);

impl One {
    fn of(&self, server: &str) -> Option<Login> {
        (server == self.0).then(|| Login {
            user: "joe".to_owned(),
            password: "pass:word".to_owned(),
            is_identity: false,
            from: "/the/file".to_owned(),
        })
    }
}

impl Logins for One {
    fn of_url(&self, url: &str) -> Result<Option<Login>, String> {
        Ok(self.of(url.split('/').nth(2).unwrap()))
    }

    fn of_repository(&self, registry: &str, _: &str) -> Result<Option<Login>, String> {
        Ok(self.of(registry))
    }

    fn missing(&self, server: &str) -> String {
        format!("no login of {server} is known")
    }
}

fn with(server: &str) -> Options {
    Options {
        logins: Some(Arc::new(One(server.to_owned()))),
        ..Options::default()
    }
}

/// A server that wants the login, but for what is at `/public`.
fn private() -> (String, Log) {
    serve(|request| {
        let is_known = request.header("authorization") == Some(BASIC);
        match (request.path.as_str(), is_known) {
            ("/public", _) => ok(b"public"),
            ("/moved", true) => (
                "302 Found",
                vec![("Location", "/file".to_owned())],
                Vec::new(),
            ),
            ("/forbidden", true) => status("403 Forbidden"),
            (_, true) => ok(b"private"),
            (_, false) => (
                "401 Unauthorized",
                vec![("WWW-Authenticate", "Basic realm=\"x\"".to_owned())],
                Vec::new(),
            ),
        }
    })
}

fn sent(log: &Log) -> Vec<Option<String>> {
    let log = log.lock().unwrap();
    let sent = log
        .iter()
        .map(|one| one.header("authorization").map(str::to_owned));
    sent.collect()
}

#[test]
fn a_login_goes_with_the_first_request_and_with_redirects_on_the_same_server() {
    let (host, log) = private();
    for path in ["file", "moved"] {
        let found = fetch(with(&host), &format!("http://{host}/{path}")).unwrap();
        assert_eq!(found, b"private", "{path}");
    }
    assert_eq!(sent(&log), vec![Some(BASIC.to_owned()); 3]);
    // A user and a password in the URL itself count before.
    let (host, log) = private();
    let url = format!("http://joe:pass%3Aword@{host}/moved");
    assert_eq!(fetch(Options::default(), &url).unwrap(), b"private");
    assert_eq!(sent(&log), vec![Some(BASIC.to_owned()); 2]);
    let wrong = fetch(with(&host), &format!("http://ann:secret@{host}/file"));
    let wrong = wrong.unwrap_err().to_string();
    assert!(
        wrong.contains("401 Unauthorized") && wrong.contains("come from its URL"),
        "{wrong}"
    );
    assert!(
        !wrong.contains("secret") && !wrong.contains("ann"),
        "{wrong}"
    );
}

#[test]
fn a_login_goes_to_no_other_server() {
    let (other, other_log) = private();
    let target = format!("http://{other}/public");
    let (host, log) = serve(move |_| ("302 Found", vec![("Location", target.clone())], Vec::new()));
    for url in [
        format!("http://{host}/x"),
        format!("http://joe:pass%3Aword@{host}/x"),
    ] {
        assert_eq!(fetch(with(&host), &url).unwrap(), b"public");
    }
    // The login of the other server would not go there either: the first one chose the address.
    assert_eq!(
        fetch(with(&other), &format!("http://{host}/x")).unwrap(),
        b"public"
    );
    assert_eq!(
        sent(&log),
        [Some(BASIC.to_owned()), Some(BASIC.to_owned()), None]
    );
    assert_eq!(sent(&other_log), [None, None, None]);
}

#[test]
fn a_refusal_names_where_the_login_is_written_or_that_there_is_none() {
    let (host, _) = private();
    let url = format!("http://{host}/forbidden");
    let refused = fetch(with(&host), &url).unwrap_err().to_string();
    assert!(
        refused.contains(
            "403 Forbidden; the user and the password that were sent come from /the/file"
        ),
        "{refused}"
    );
    let none = fetch(with("other.example"), &url).unwrap_err().to_string();
    let expected = format!("401 Unauthorized; no login of http://{host} is known");
    assert!(none.contains(&expected), "{none}");
    // A client without logins says what the server says.
    let bare = fetch(Options::default(), &url).unwrap_err().to_string();
    assert!(bare.ends_with("401 Unauthorized"), "{bare}");
}

/// A registry with one document, which asks by `challenge`, and for a token at `/token`.
fn registry(challenge: &'static str) -> (String, Log) {
    serve(move |request| {
        let host = request.header("host").unwrap();
        let sent = request.header("authorization");
        if request.path.starts_with("/token") {
            return match sent {
                Some(BASIC) => ok(br#"{"token":"t0ken"}"#),
                Some(_) => status("401 Unauthorized"),
                None => ok(br#"{"token":"anybody"}"#),
            };
        }
        let wanted = match challenge {
            "Basic" => BASIC,
            _ => "Bearer t0ken",
        };
        if sent == Some(wanted) {
            return ok(b"{}");
        }
        let realm = format!("{challenge} realm=\"http://{host}/token\",service=\"s\"");
        let negotiate = ("WWW-Authenticate", "Negotiate".to_owned());
        (
            "401 Unauthorized",
            vec![negotiate, ("WWW-Authenticate", realm)],
            Vec::new(),
        )
    })
}

fn document(options: &Options, host: &str) -> Result<Vec<u8>, Failure> {
    let client = blocking::Client::new(options).unwrap();
    client.document(&mut Repository::new(host, "group/app"), "v1")
}

#[test]
fn a_registry_gets_the_login_by_its_token_service_or_itself() {
    let (host, log) = registry("Bearer");
    assert_eq!(document(&with(&host), &host).unwrap(), b"{}");
    let basic = Some(BASIC.to_owned());
    assert_eq!(
        sent(&log),
        [None, basic.clone(), Some("Bearer t0ken".to_owned())]
    );
    let refused = document(&with("other.example"), &host)
        .unwrap_err()
        .to_string();
    let expected = format!("401 Unauthorized; no login of http://{host} is known");
    assert!(refused.contains(&expected), "{refused}");

    let (host, log) = serve(|request| match request.header("authorization") {
        Some(BASIC) => ok(b"{}"),
        _ => (
            "401 Unauthorized",
            vec![("WWW-Authenticate", "BASIC realm=\"x\"".to_owned())],
            Vec::new(),
        ),
    });
    assert_eq!(document(&with(&host), &host).unwrap(), b"{}");
    assert_eq!(sent(&log), [None, basic]);
    let refused = document(&with("other.example"), &host)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("no login of http://"), "{refused}");
}

/// The login of `joe` with another password.
#[derive(Debug)]
struct Wrong;

impl Logins for Wrong {
    fn of_url(&self, _: &str) -> Result<Option<Login>, String> {
        Ok(None)
    }

    fn of_repository(&self, _: &str, _: &str) -> Result<Option<Login>, String> {
        let login = One("x".to_owned()).of("x").unwrap();
        Ok(Some(Login {
            password: "secret".to_owned(),
            ..login
        }))
    }

    fn missing(&self, _: &str) -> String {
        String::new()
    }
}

#[test]
fn a_wrong_password_is_refused_by_the_name_of_its_file() {
    let options = Options {
        logins: Some(Arc::new(Wrong)),
        ..Options::default()
    };
    let (host, log) = registry("Bearer");
    let refused = document(&options, &host).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("/token: the server answered 401 Unauthorized")
            && text.contains("come from /the/file"),
        "{text}"
    );
    assert_eq!(log.lock().unwrap().len(), 2);
    for shown in [text, format!("{refused:?}"), format!("{options:?}")] {
        assert!(
            !shown.contains("secret") && !shown.contains("c2VjcmV0"),
            "{shown}"
        );
    }
}

#[test]
fn a_token_service_without_tls_on_another_machine_gets_no_login() {
    let (host, log) = serve(|_| {
        let realm = "Bearer realm=\"http://192.0.2.1/token\",service=\"s\"".to_owned();
        (
            "401 Unauthorized",
            vec![("WWW-Authenticate", realm)],
            Vec::new(),
        )
    });
    let refused = document(&with(&host), &host).unwrap_err().to_string();
    assert!(
        refused.contains(
            "the registry's token service http://192.0.2.1/token is not https, and gets no password"
        ),
        "{refused}"
    );
    assert_eq!(log.lock().unwrap().len(), 1);
}

/// An identity token for whatever registry is asked.
struct Token(&'static str);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Logins for Token {
    fn of_url(&self, _: &str) -> Result<Option<Login>, String> {
        Ok(None)
    }

    fn of_repository(&self, _: &str, _: &str) -> Result<Option<Login>, String> {
        Ok(Some(Login {
            user: "<token>".to_owned(),
            password: self.0.to_owned(),
            is_identity: true,
            from: "/the/file".to_owned(),
        }))
    }

    fn missing(&self, _: &str) -> String {
        String::new()
    }
}

fn with_token(token: &'static str) -> Options {
    Options {
        logins: Some(Arc::new(Token(token))),
        ..Options::default()
    }
}

/// A registry whose token service takes the identity token `id+1` alone, as a form, and gives another token for it.
fn registry_of_identities() -> (String, Log) {
    serve(|request| {
        let host = request.header("host").unwrap();
        if request.path.starts_with("/token") {
            let expected = "service=s&scope=repository%3Agroup%2Fapp%3Apull&grant_type=refresh_token&client_id=slipway&refresh_token=id%2B1";
            let is_form =
                request.header("content-type") == Some("application/x-www-form-urlencoded");
            return match request.body == expected.as_bytes() && is_form {
                // The other name of the token, and what this client has no use for.
                true => ok(br#"{"access_token":"t0ken","refresh_token":"other","expires_in":60}"#),
                false => status("400 Bad Request"),
            };
        }
        if request.header("authorization") == Some("Bearer t0ken") {
            return ok(b"{}");
        }
        let realm = format!(
            "Bearer realm=\"http://{host}/token?x=1\",service=\"s\",scope=\"repository:group/app:pull\""
        );
        (
            "401 Unauthorized",
            vec![("WWW-Authenticate", realm)],
            Vec::new(),
        )
    })
}

#[test]
fn an_identity_token_goes_to_the_token_service_alone_and_in_no_address() {
    let (host, log) = registry_of_identities();
    assert_eq!(document(&with_token("id+1"), &host).unwrap(), b"{}");
    let asked: Vec<_> = {
        let log = log.lock().unwrap();
        let asked = log.iter().map(|one| (one.method.clone(), one.path.clone()));
        asked.collect()
    };
    let document_path = "/v2/group/app/manifests/v1";
    assert_eq!(
        asked,
        [
            ("GET", document_path),
            ("POST", "/token?x=1"),
            ("GET", document_path)
        ]
        .map(|(method, path)| (method.to_owned(), path.to_owned()))
    );
    assert_eq!(sent(&log), [None, None, Some("Bearer t0ken".to_owned())]);

    let refused = document(&with_token("secret"), &host).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("/token: the server answered 400 Bad Request")
            && text.contains("the identity token that was sent comes from /the/file"),
        "{text}"
    );
    for shown in [text, format!("{refused:?}")] {
        assert!(!shown.contains("secret"), "{shown}");
    }
}

#[test]
fn an_identity_token_is_no_password_of_a_registry() {
    let (host, log) = registry("Basic");
    let refused = document(&with_token("secret"), &host)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("/the/file has an identity token, which a token service takes alone"),
        "{refused}"
    );
    assert_eq!(sent(&log), [None]);
}

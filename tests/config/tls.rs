//! Files that name certificates and keys: they are read and tried before anything runs.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::{check_text, problems_of, run};

/// A folder with a pair, the key of another, and files that are neither.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for name in ["own", "other"] {
            let pair = rcgen::generate_simple_self_signed(["gateway.test".to_owned()]).unwrap();
            fs::write(folder.path(&format!("{name}.crt")), pair.cert.pem()).unwrap();
            fs::write(folder.path(&format!("{name}.key")), pair.signing_key.serialize_pem()).unwrap();
        }
        fs::write(folder.path("empty"), "").unwrap();
        fs::create_dir(folder.path("empty.d")).unwrap();
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
        fs::write(folder.path("encrypted.key"), encrypted).unwrap();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(folder.path("broken.crt"), broken).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `@NAME` in a text becomes the path of a file.
    fn fill(&self, text: &str) -> String {
        text.replace('@', &format!("{}/", self.0.path().display()))
    }

    /// The problems of a text, with `@NAME` in place of paths.
    fn problems(&self, text: &str) -> String {
        problems_of(self.fill(text)).replace(&format!("{}/", self.0.path().display()), "@")
    }
}

fn with_listener(keys: &str) -> String {
    format!("tls: {{ listen: 127.0.0.1:8443, {keys} }}\ngroups: [{{ name: g, up_to_tokens: 9, servers: [a:1] }}]\n")
}

fn with_server(keys: &str) -> String {
    let server = format!("{{ address: \"https://gpu-1:8443\", tls: {{ {keys} }} }}");
    format!("groups:\n- name: g\n  up_to_tokens: 9\n  servers:\n  - {server}\n")
}

#[test]
fn what_would_run_says_which_files_are_used() {
    let folder = Folder::new();
    let listener = with_listener("certificate: @own.crt, key: @own.key, min_version: 1.3");
    let text = format!(
        "{}- {{ name: h, up_to_tokens: 99, servers: [\"https://10.0.0.1:8443\"] }}\n\
         upstream: {{ tls: {{ ca: @own.crt, server_name: gpu.test, certificate: @other.crt, key: @other.key }} }}\n",
        listener.replace("[{ name: g", "\n- { name: g").replace("] }]", "] }")
    );
    let checked = check_text(folder.fill(&text));
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{checked:?}");
    for line in [
        "tls: 127.0.0.1:8443, certificate @own.crt (valid until Jan  1 00:00:00 4096 +00:00), key @own.key, min_version 1.3\n",
        "  a:1, max_model_len auto\n",
        "  https://10.0.0.1:8443, max_model_len auto, server_name gpu.test, ca @own.crt, certificate @other.crt, key @other.key\n",
    ] {
        let line = folder.fill(line);
        assert!(checked.stdout.contains(&line), "{line}\n{}", checked.stdout);
    }
}

#[test]
fn a_server_may_differ_from_the_others() {
    let folder = Folder::new();
    let text = format!(
        "{}upstream: {{ tls: {{ ca: @other.crt, certificate: @other.crt, key: @other.key, insecure: true }} }}\n",
        with_server("ca: @own.crt, certificate: none, insecure: false")
    );
    let checked = check_text(folder.fill(&text));
    let expected = folder.fill("  https://gpu-1:8443, max_model_len auto, server_name gpu-1, ca @own.crt\n");
    assert!(checked.stdout.contains(&expected), "{checked:?}");
}

#[test]
fn files_that_cannot_serve_clients_are_refused() {
    let folder = Folder::new();
    for (keys, problem) in [
        ("key: @own.key", "tls.certificate: missing beside tls.listen, expected a PEM file"),
        ("certificate: @own.crt, key: none", "tls.key: missing beside tls.listen, expected a PEM file"),
        (
            "certificate: @none, key: @own.key",
            "tls.certificate: @none cannot be read (No such file or directory (os error 2)), expected a readable PEM file",
        ),
        (
            "certificate: @empty, key: @own.key",
            "tls.certificate: @empty holds no certificate, expected certificates in PEM",
        ),
        (
            "certificate: @own.crt, key: @own.crt",
            "tls.key: @own.crt holds no private key, expected a private key in PEM without a password",
        ),
        (
            "certificate: @own.crt, key: @encrypted.key",
            "tls.key: @encrypted.key is encrypted, expected a private key in PEM without a password",
        ),
        ("certificate: @own.crt, key: @own.key, min_version: 1.1", "found 1.1, expected \"1.2\" or \"1.3\""),
        ("certificate: [a], key: @own.key", "tls.certificate: found a list, expected the path of a PEM file, or none"),
    ] {
        let found = folder.problems(&with_listener(keys));
        assert!(found.contains(problem), "{keys}: {found}");
        assert!(found.starts_with("FILE"), "{found}");
    }
    for keys in ["certificate: @own.crt, key: @other.key", "certificate: @broken.crt, key: @own.key"] {
        let found = folder.problems(&with_listener(keys));
        assert!(found.starts_with("FILE:1: tls.certificate: @") && found.contains(" cannot be used ("), "{found}");
        assert!(found.ends_with(", expected a certificate for the key @own.key") || keys.contains("other"), "{found}");
    }
}

#[test]
fn files_that_cannot_be_used_towards_servers_are_refused() {
    let folder = Folder::new();
    for (keys, problem) in [
        ("ca: @none", "servers[0].tls.ca: @none cannot be read ("),
        ("ca: @own.key", "servers[0].tls.ca: @own.key holds no certificate, expected certificates in PEM"),
        ("ca: @broken.crt", "servers[0].tls.ca: @broken.crt holds a certificate that cannot be trusted ("),
        ("insecure: true, key: @own.key", "servers[0].tls.key: given alone, expected certificate and key side by side"),
        (
            "insecure: true, certificate: @own.crt, key: @other.key",
            "servers[0].tls.certificate: @own.crt cannot be used (",
        ),
        (
            "insecure: true, certificate: @broken.crt, key: @own.key",
            "servers[0].tls.certificate: @broken.crt holds a broken certificate (",
        ),
        (
            "ca: @own.crt, server_name: \"a b\"",
            "servers[0].tls.server_name: found a b, expected a DNS name or an IP address",
        ),
    ] {
        let found = folder.problems(&with_server(keys));
        assert!(found.contains(problem), "{keys}: {found}");
    }
}

#[test]
fn the_authorities_of_the_system_are_tried_when_they_are_needed() {
    let folder = Folder::new();
    let file = folder.path("tidegate.yaml");
    fs::write(&file, with_server("ca: none")).unwrap();
    let check = |store: &str| {
        let [store, directory] = [store, "empty.d"].map(|name| folder.path(name).display().to_string());
        run(&["check".as_ref(), file.as_os_str()], &[("SSL_CERT_FILE", &store), ("SSL_CERT_DIR", &directory)])
    };
    assert!(check("own.crt").stdout.contains("server_name gpu-1, ca of the system\n"));
    for (store, problem) in [
        ("empty", "the system's certificate authorities are not there, expected a file of authorities here, or "),
        ("none", "the system's certificate authorities cannot be read ("),
        ("broken.crt", "the system's certificate authorities cannot be used ("),
    ] {
        let checked = check(store);
        assert_eq!(checked.code, Some(64), "{store}: {checked:?}");
        assert!(checked.stderr.contains(problem), "{store}: {checked:?}");
    }
}

#[test]
fn keys_without_effect_are_warned_of() {
    let folder = Folder::new();
    let text = "tls: { certificate: @own.crt }\nupstream: { tls: { insecure: true } }\n\
                groups:\n- { name: g, up_to_tokens: 9, servers: [{ address: a:1, tls: { ca: @own.crt } }] }\n";
    let checked = check_text(folder.fill(text));
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let warnings = "warning: FILE:1: tls.certificate: has no effect without tls.listen\n\
                    warning: FILE:2: upstream.tls.insecure: has no effect on servers without https://\n\
                    warning: FILE:4: groups[0].servers[0].tls.ca: has no effect on servers without https://\n";
    assert_eq!(checked.stderr, warnings);
}

#[test]
fn the_tls_listener_needs_an_address_of_its_own() {
    let folder = Folder::new();
    let text = with_listener("certificate: @own.crt, key: @own.key");
    let found = folder.problems(&format!("listen: 127.0.0.1:8443\n{text}"));
    assert_eq!(found, "FILE:2: tls.listen: found 127.0.0.1:8443 beside 127.0.0.1:8443, expected each address once");
    let found = folder.problems(&text.replace("a:1", "\"127.0.0.1:8443\""));
    assert!(found.contains("on which Tidegate itself listens"), "{found}");
}

#[test]
fn an_expired_certificate_is_warned_of() {
    let folder = Folder::new();
    let mut params = rcgen::CertificateParams::new(vec!["gateway.test".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 1, 2);
    let key = rcgen::KeyPair::generate().unwrap();
    fs::write(folder.path("old.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(folder.path("old.key"), key.serialize_pem()).unwrap();
    let checked = check_text(folder.fill(&with_listener("certificate: @old.crt, key: @old.key")));
    let warning = "warning: FILE:1: tls.certificate: the certificate is valid only until Jan  2 00:00:00 2020 +00:00\n";
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), warning));
}

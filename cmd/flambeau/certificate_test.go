package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"software.sslmate.com/src/go-pkcs12"

	"github.com/flambeau-serve/flambeau/internal/config"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	made, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bundle, err := pkcs12.Modern.Encode(made.PrivateKey, leaf, []*x509.Certificate{leaf}, "changeit")
	if err != nil {
		t.Fatal(err)
	}
	old, err := pkcs12.Legacy.Encode(made.PrivateKey, leaf, nil, "changeit")
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keystore, legacy, bad := write("k.p12", bundle), write("old.p12", old), write("bad.p12", []byte("\xfe\xed\xfe\xed"))
	keyFile := write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	certFile := write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}))
	tests := []struct {
		name     string
		settings config.TLS
		chain    int
		says     string
	}{
		{name: "of our own", chain: 1},
		{name: "PEM", settings: config.TLS{CertificateFile: certFile, PrivateKeyFile: keyFile}, chain: 1},
		{name: "keystore first", settings: config.TLS{Keystore: keystore, KeystorePass: "changeit", CertificateFile: "/nope"}, chain: 2},
		{name: "old keystore", settings: config.TLS{Keystore: legacy, KeystorePass: "changeit"}, chain: 1},
		{name: "wrong password", settings: config.TLS{Keystore: keystore, KeystorePass: "x"}, says: "the password is not keystore_pass"},
		{name: "no keystore", settings: config.TLS{Keystore: dir + "/nope"}, says: "keystore: "},
		{name: "java's own format", settings: config.TLS{Keystore: bad}, says: "keytool"},
		{name: "no PEM", settings: config.TLS{CertificateFile: keyFile, PrivateKeyFile: keyFile}, says: "https cannot be served"},
	}
	for _, tt := range tests {
		got, err := certificateOnce(tt.settings)()
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want an error that says %q", tt.name, err, tt.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if n := len(got.Certificates[0].Certificate); n != tt.chain {
			t.Errorf("%s: a chain of %d certificates, want %d", tt.name, n, tt.chain)
		}
	}
}

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"sync"
	"time"

	"software.sslmate.com/src/go-pkcs12"

	"github.com/flambeau-serve/flambeau/internal/config"
)

// selfSignedFor is how long a certificate of our own making is valid.
const selfSignedFor = 365 * 24 * time.Hour

// certificateOnce loads the certificate of the https addresses when it is asked for first.
func certificateOnce(settings config.TLS) func() (*tls.Config, error) {
	return sync.OnceValues(func() (*tls.Config, error) {
		var cert tls.Certificate
		var err error
		switch {
		case settings.Keystore != "":
			cert, err = fromKeystore(settings.Keystore, settings.KeystorePass)
		case settings.CertificateFile != "":
			cert, err = tls.LoadX509KeyPair(settings.CertificateFile, settings.PrivateKeyFile)
		default: // as TorchServe does
			cert, err = selfSigned()
		}
		if err != nil {
			return nil, fmt.Errorf("https cannot be served: %w", err)
		}
		return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
	})
}

// fromKeystore reads the key and its certificates out of a PKCS12 file.
func fromKeystore(file, password string) (tls.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("keystore: %w", err)
	}
	key, leaf, chain, err := pkcs12.DecodeChain(data, password)
	if errors.Is(err, pkcs12.ErrIncorrectPassword) {
		return tls.Certificate{}, fmt.Errorf("keystore %s: the password is not keystore_pass", file)
	}
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("keystore %s is no PKCS12 file with one key (%w); convert it with keytool -importkeystore -deststoretype "+
			"pkcs12, or give certificate_file and private_key_file", file, err)
	}
	cert := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert, nil
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(selfSignedFor),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

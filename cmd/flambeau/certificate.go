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
	"sync"
	"time"

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
			err = errors.New("keystore is not supported: write its key and certificates to PEM files (openssl pkcs12 -in KEYSTORE -nodes), " +
				"and name them by private_key_file and certificate_file")
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

package identity

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rivulet/appliance/state/durable"
	"rivulet/fabric/cure"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// Broker returns the identity of the broker whose key is in dir, and its key for relayed packets, which is derived from
// it. It creates the key if there is none.
func Broker(dir string) (rpc.Identity, wgkey.Private, error) {
	path := filepath.Join(dir, "broker.key")
	key, err := brokerKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = newBrokerKey(path)
	}
	if err != nil {
		return rpc.Identity{}, wgkey.Private{}, err
	}
	raw, err := hkdf.Key(sha256.New, key.Seed(), nil, "rivulet broker packets v1", 32)
	if err != nil {
		return rpc.Identity{}, wgkey.Private{}, fmt.Errorf("identity: %w", err)
	}
	packets, err := wgkey.ParsePrivate(base64.StdEncoding.EncodeToString(raw))
	if err != nil {
		return rpc.Identity{}, wgkey.Private{}, fmt.Errorf("identity: %w", err)
	}
	self, err := rpc.NewIdentity(key, "broker")
	return self, packets, err
}

func brokerKey(path string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, cure.Errorf("the broker's key cannot be read (%w); run it as the user that owns it, or choose another folder with --state", err)
	}
	if block, _ := pem.Decode(text); block != nil {
		if k, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if key, ok := k.(ed25519.PrivateKey); ok {
				return key, nil
			}
		}
	}
	return nil, cure.Errorf("%s holds no key of a broker; restore it from a copy, or move it away: then the broker has another ID, and trust.broker has to follow", path)
}

func newBrokerKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, cure.Errorf("the broker's key cannot be stored (%w); choose a folder of your own with --state", err)
	}
	if err := durable.Write(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return nil, cure.Errorf("the broker's key cannot be stored (%w); choose a folder of your own with --state", err)
	}
	return key, nil
}

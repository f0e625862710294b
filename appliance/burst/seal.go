package burst

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// seal encrypts credentials at rest, AES-256-GCM.
type seal struct{ aead cipher.AEAD }

func newSeal(key ed25519.PrivateKey) (seal, error) {
	secret, err := hkdf.Key(sha256.New, key.Seed(), nil, "rivulet burst credentials, 1", 32)
	if err != nil {
		return seal{}, fmt.Errorf("burst: key of the credentials: %w", err)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return seal{}, fmt.Errorf("burst: key of the credentials: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return seal{}, fmt.Errorf("burst: key of the credentials: %w", err)
	}
	return seal{aead}, nil
}

// close encrypts; name identifies the credential, and is needed to decrypt it.
func (s seal) close(name string, plain []byte) []byte {
	nonce := make([]byte, s.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return s.aead.Seal(nonce, nonce, plain, []byte(name))
}

var errSealed = errors.New("its credential cannot be read: it was sealed by another identity than this device's; add it again with rivulet burst add --replace")

func (s seal) open(name string, sealed []byte) ([]byte, error) {
	if len(sealed) < s.aead.NonceSize() {
		return nil, errSealed
	}
	plain, err := s.aead.Open(nil, sealed[:s.aead.NonceSize()], sealed[s.aead.NonceSize():], []byte(name))
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}

package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// workFactor makes each guess of a passphrase cost 64 MB of memory for about 0.2 s; age's default needs 256 MB, more
// than boards have.
const workFactor = 16

// Seal encrypts what is written to it.
func Seal(out io.Writer, passphrase string) (io.WriteCloser, error) {
	r, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w; write another one into the file behind --passphrase-file", err)
	}
	r.SetWorkFactor(workFactor)
	w, err := age.Encrypt(out, r)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Unseal returns the plain stream of one that is encrypted if and only if there is a passphrase: who can exchange the file
// but does not know the passphrase cannot give a plain one of its own.
func Unseal(in io.Reader, passphrase string) (io.Reader, error) {
	b := bufio.NewReader(in)
	head, _ := b.Peek(len(ageMagic))
	if !bytes.Equal(head, []byte(ageMagic)) {
		if passphrase != "" {
			return nil, wrong("it is not encrypted, and a passphrase was given; if you made it without one, leave --passphrase-file out")
		}
		return b, nil
	}
	if passphrase == "" {
		return nil, wrong("it is encrypted and no passphrase was given; add --passphrase-file FILE")
	}
	id, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w; write another one into the file behind --passphrase-file", err)
	}
	id.SetMaxWorkFactor(workFactor + 2) // a foreign file must not use all memory
	r, err := age.Decrypt(b, id)
	var mismatch *age.NoIdentityMatchError
	switch {
	case errors.As(err, &mismatch):
		return nil, wrong("the passphrase does not fit; look at the file behind --passphrase-file")
	case err != nil:
		return nil, wrong("it cannot be decrypted: %w; take another copy of the file", err)
	}
	return r, nil
}

const ageMagic = "age-encryption.org/"

package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
	"golang.org/x/term"
)

const passphraseFile = "RIVULET_PASSPHRASE_FILE"

// seal writes a private key as a text of age, which `age -d` opens too.
func seal(to io.Writer, seed []byte, passphrase string) error {
	r, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return err
	}
	text := armor.NewWriter(to)
	w, err := age.Encrypt(text, r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, base64.StdEncoding.EncodeToString(seed))
	return errors.Join(err, w.Close(), text.Close())
}

func readKey(file string) (ed25519.PrivateKey, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	passphrase, err := readPassphrase("Passphrase of "+file+": ", false)
	if err != nil {
		return nil, err
	}
	id, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	plain, err := age.Decrypt(armor.NewReader(f), id)
	var mismatch *age.NoIdentityMatchError
	switch {
	case errors.As(err, &mismatch):
		return nil, fmt.Errorf("the passphrase does not fit %s; type it once more, or take the one of that key", file)
	case err != nil:
		return nil, fmt.Errorf("%s is no file of `sign key`: %w; take its backup", file, err)
	}
	raw, err := io.ReadAll(io.LimitReader(plain, 1<<10))
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; take its backup", file, err)
	}
	seed, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%s holds no key; take a file that `sign key` made", file)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// readPassphrase returns the first line of the file that the environment names, or what is typed: twice for a new key.
func readPassphrase(prompt string, isNew bool) (string, error) {
	if file := os.Getenv(passphraseFile); file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		line, _, _ := strings.Cut(string(raw), "\n")
		return line, long(line, isNew)
	}
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("no terminal to ask for the passphrase: %w; run it on one, or write the passphrase into a file and name it with %s", err, passphraseFile)
	}
	defer terminal.Close()
	read := func(prompt string) (string, error) {
		fmt.Fprint(terminal, prompt)
		line, err := term.ReadPassword(int(terminal.Fd()))
		fmt.Fprintln(terminal)
		return string(line), err
	}
	line, err := read(prompt)
	if err != nil || !isNew {
		return line, err
	}
	if err := long(line, isNew); err != nil {
		return "", err
	}
	if again, err := read("Once more: "); err != nil || again != line {
		return "", errors.Join(err, errors.New("the two are not the same; type it once more"))
	}
	return line, nil
}

// shortest is the least length of a new passphrase, in bytes.
const shortest = 12

func long(passphrase string, isNew bool) error {
	if isNew && len(passphrase) < shortest {
		return fmt.Errorf("the passphrase has fewer than %d characters; take five or six random words", shortest)
	}
	return nil
}

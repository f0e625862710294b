package firstboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"rivulet/appliance/config"
)

// hostKeys are those of ssh, which the former owner could read.
const hostKeys = "/etc/ssh/ssh_host_*"

// Forget removes what the owner gave this device: the files on the boot partition first, which the next boot would take
// anew, then SSH keys, networks, configuration and SSH's host keys, last the note. It returns what was removed,
// also with an error. Power cut: the card's files are gone on its disk before anything else; Forget may be repeated.
func Forget(dev Device) (removed []string, err error) {
	d := disk{dev.Root}
	if removed, err = ForgetCard(dev); err != nil {
		return removed, err
	}
	was, err := Read(dev.Root)
	if err != nil {
		return removed, fmt.Errorf("firstboot: %w; look at the data partition: rivulet doctor", err)
	}
	files := append(slices.Clone(was.Files), keysPath, radioPath, config.DefaultPath)
	var keys []string
	for _, pattern := range append([]string{hostKeys}, networkGlobs...) {
		found, _ := filepath.Glob(d.path(pattern)) // the pattern is good
		keys = append(keys, found...)
	}
	wifi, err := below(d.path(wifiDir)) // networks that iwctl has added, too
	if err != nil {
		return removed, fmt.Errorf("firstboot: %w; look at the data partition: rivulet doctor", err)
	}
	for _, path := range append(keys, wifi...) {
		files = append(files, strings.TrimPrefix(path, d.path("/")))
	}
	files = append(files, NotePath)
	for _, name := range files {
		if _, err := os.Lstat(d.path(name)); err != nil {
			continue
		}
		if err := d.remove(name); err != nil {
			return removed, fmt.Errorf("firstboot: %w; look at the data partition: rivulet doctor", err)
		}
		removed = append(removed, filepath.Join("/", name))
	}
	return removed, nil
}

// ForgetCard removes from the boot partition the card's file, the folder of networks, what explains both, and the
// kubeconfigs beside it.
func ForgetCard(dev Device) ([]string, error) {
	removed, err := forgetCard(dev, disk{dev.Root})
	if err != nil {
		err = fmt.Errorf("firstboot: the boot partition cannot be emptied: %w; remove %s from it in a PC, and run this again", err, config.CardName)
	}
	return removed, err
}

func forgetCard(dev Device, d disk) (removed []string, err error) {
	if dev.Open != nil { // fails where the partition is not mounted, and the folder therefore empty
		shut, err := dev.Open()
		if err != nil {
			return nil, err
		}
		defer shut()
	}
	b := &boot{dev: dev, disk: d}
	names := map[string]bool{} // in lower case: FAT finds a file whatever the case, and keeps that of a PC
	for _, name := range []string{config.CardName, config.CardName + ".new", ErrorName, NetworkName, NetworkFolder, NetworkErrorName} {
		names[strings.ToLower(name)] = true
	}
	for _, name := range b.misnamed() {
		names[strings.ToLower(name)] = true
	}
	if raw, err := b.readCard(); err == nil && raw != nil {
		card, parsed := config.ParseCard(raw, config.Options{File: config.CardName})
		card.Good(parsed, secretPath, func(name string) string { names[strings.ToLower(name)] = true; return name })
	}
	entries, err := os.ReadDir(d.path(dev.Boot))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if name := strings.ToLower(e.Name()); !names[name] && filepath.Ext(name) != ".kubeconfig" {
			continue
		}
		if e.IsDir() && strings.EqualFold(e.Name(), NetworkFolder) {
			err = os.RemoveAll(d.path(b.card(e.Name())))
		} else {
			err = d.remove(b.card(e.Name()))
		}
		if err != nil {
			return removed, err
		}
		removed = append(removed, e.Name()+" on the boot partition")
	}
	f, err := os.Open(d.path(dev.Boot))
	if err != nil {
		return removed, err
	}
	defer f.Close()
	return removed, unix.Syncfs(int(f.Fd())) // fsync of a folder does not write FAT's allocation table
}

// below returns the files in a folder and its folders; none if it does not exist.
func below(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && !e.IsDir():
			files = append(files, path)
		}
		return err
	})
	return files, err
}

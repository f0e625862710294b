package flash

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
)

// ConfigName is the configuration file on the boot partition, which a device reads when it starts.
const ConfigName = "rivulet.yaml"

// MaxConfig bounds ConfigName, and each other file that is placed, bytes.
const MaxConfig = 64 << 10

// Place writes files on the boot partition of a disk, by their paths, replaces those of the image, and reads them back.
func Place(f *os.File, files map[string][]byte) error {
	for name, content := range files {
		if len(content) == 0 && path.Dir(name) == "." || len(content) > MaxConfig {
			return image("%s has %d bytes; it may have 1 to %d", name, len(content), MaxConfig)
		}
	}
	start, size, err := bootPartition(f)
	if err == nil {
		err = placeAt(f, start, size, files)
	}
	if err != nil {
		names := strings.Join(slices.Sorted(maps.Keys(files)), ", ")
		return fmt.Errorf("flash: the image is on the disk, but %s is not: %w; copy it by hand to the partition RVBOOT", names, err)
	}
	return nil
}

func placeAt(f *os.File, start, size int64, files map[string][]byte) (err error) {
	// The library may panic on damaged file systems.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the boot partition cannot be understood (%v)", r)
		}
	}()
	boot := make([]byte, sector)
	if _, err := f.ReadAt(boot, start); err != nil {
		return err
	}
	if string(boot[82:90]) != "FAT32   " {
		return errors.New("the first partition is not FAT32")
	}
	v, err := fat32.Read(file.New(f, false), size, start, sector)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := placeFile(v, name, files[name]); err != nil {
			return err
		}
	}
	if err := recount(f, start, boot); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	Forget(f)
	if v, err = fat32.Read(file.New(f, true), size, start, sector); err != nil {
		return err
	}
	for name, content := range files {
		if back, err := readAll(v, name); err != nil || !bytes.Equal(back, content) {
			return fmt.Errorf("%s is not read back as it was written (%v)", name, err)
		}
	}
	return nil
}

func placeFile(v filesystem.FileSystem, name string, content []byte) error {
	// An empty file has no clusters, and the library does not allocate any for it.
	if old, err := readAll(v, name); err == nil && len(old) == 0 {
		return errors.New("there is an empty one already")
	}
	if dir := path.Dir(name); dir != "." {
		if err := v.Mkdir("/" + dir); err != nil {
			return err
		}
	}
	out, err := v.OpenFile("/"+name, os.O_CREATE|os.O_RDWR|os.O_TRUNC)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = out.Write(content)
	return err
}

// recount writes the number of free clusters, which the library does not update.
func recount(f *os.File, start int64, boot []byte) error {
	le := binary.LittleEndian
	reserved, fats, each := int64(le.Uint16(boot[14:])), int64(boot[16]), int64(le.Uint32(boot[36:]))
	clusters := (int64(le.Uint32(boot[32:])) - reserved - fats*each) / int64(boot[13])
	table := make([]byte, (clusters+2)*4)
	if _, err := f.ReadAt(table, start+reserved*sector); err != nil {
		return err
	}
	free := uint32(0)
	for at := int64(8); at < int64(len(table)); at += 4 {
		if le.Uint32(table[at:])&0x0fffffff == 0 {
			free++
		}
	}
	count := le.AppendUint32(nil, free)
	_, err := f.WriteAt(count, start+int64(le.Uint16(boot[48:]))*sector+488)
	return err
}

func readAll(v filesystem.FileSystem, name string) ([]byte, error) {
	in, err := v.OpenFile("/"+name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(in)
}

// bootPartition is the first one, in bytes, of a disk with an MBR or a GPT.
func bootPartition(f io.ReaderAt) (start, size int64, err error) {
	b := make([]byte, 3*sector)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0, 0, err
	}
	if b[510] != 0x55 || b[511] != 0xaa {
		return 0, 0, errors.New("the image has no partition table")
	}
	le := binary.LittleEndian
	first := b[446:462]
	start, size = int64(le.Uint32(first[8:])), int64(le.Uint32(first[12:]))
	if first[4] == 0xee || string(b[sector:sector+8]) == "EFI PART" { // GPT, behind a protective or a hybrid MBR
		h := b[sector:]
		at := int64(le.Uint64(h[72:])) * sector
		entry := make([]byte, 128)
		if _, err := f.ReadAt(entry, at); err != nil {
			return 0, 0, err
		}
		start = int64(le.Uint64(entry[32:]))
		size = int64(le.Uint64(entry[40:])) - start + 1
	}
	if start <= 0 || size <= 0 || start > maxImage/sector || size > maxImage/sector {
		return 0, 0, errors.New("the image has no first partition")
	}
	return start * sector, size * sector, nil
}

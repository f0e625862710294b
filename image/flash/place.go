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

	"rivulet/image/device/layout"
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
	start, size, err := partition(f, layout.Boot)
	if err == nil {
		err = placeAt(f, start, size, files)
	}
	if err != nil {
		names := strings.Join(slices.Sorted(maps.Keys(files)), ", ")
		return fmt.Errorf("flash: the image is on the disk, but %s is not: %w; copy it by hand to the partition RVBOOT", names, err)
	}
	return nil
}

func placeAt(f *os.File, start, size int64, files map[string][]byte) error {
	boot := make([]byte, sector)
	if _, err := f.ReadAt(boot, start); err != nil {
		return err
	}
	if string(boot[82:90]) != "FAT32   " {
		return errors.New("the first partition is not FAT32")
	}
	if err := onFAT(f, start, size, true, func(v filesystem.FileSystem) error {
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := placeFile(v, name, files[name]); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := recount(f, start, boot); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	Forget(f)
	return onFAT(f, start, size, false, func(v filesystem.FileSystem) error {
		for name, content := range files {
			if back, err := readFAT(v, name); err != nil || !bytes.Equal(back, content) {
				return fmt.Errorf("%s is not read back as it was written (%v)", name, err)
			}
		}
		return nil
	})
}

// onFAT calls do with the file system of a partition.
func onFAT(f *os.File, start, size int64, write bool, do func(filesystem.FileSystem) error) (err error) {
	// The library may panic on damaged file systems.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the boot partition cannot be understood (%v)", r)
		}
	}()
	v, err := fat32.Read(file.New(f, !write), size, start, sector)
	if err != nil {
		return err
	}
	return do(v)
}

func placeFile(v filesystem.FileSystem, name string, content []byte) error {
	// An empty file has no clusters, and the library does not allocate any for it.
	if old, err := readFAT(v, name); err == nil && len(old) == 0 {
		return errors.New("there is an empty one already")
	}
	if dir := path.Dir(name); dir != "." {
		if err := v.Mkdir("/" + dir); err != nil {
			return err
		}
	}
	return writeFAT(v, name, content)
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

func readFAT(v filesystem.FileSystem, name string) ([]byte, error) {
	in, err := v.OpenFile("/"+name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(in)
}

func writeFAT(v filesystem.FileSystem, name string, content []byte) error {
	out, err := v.OpenFile("/"+name, os.O_CREATE|os.O_RDWR|os.O_TRUNC)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = out.Write(content)
	return err
}

// partition returns where a partition begins and its size, in bytes, on a disk with an MBR or a GPT.
func partition(f io.ReaderAt, number int) (start, size int64, err error) {
	b := make([]byte, 3*sector)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0, 0, err
	}
	if b[510] != 0x55 || b[511] != 0xaa {
		return 0, 0, errors.New("the image has no partition table")
	}
	le := binary.LittleEndian
	at := b[446+16*(number-1):]
	start, size = int64(le.Uint32(at[8:])), int64(le.Uint32(at[12:]))
	if isGPT(b) {
		h := b[sector:]
		entry := make([]byte, 128)
		if _, err := f.ReadAt(entry, int64(le.Uint64(h[72:]))*sector+int64(number-1)*int64(le.Uint32(h[84:]))); err != nil {
			return 0, 0, err
		}
		start = int64(le.Uint64(entry[32:]))
		size = int64(le.Uint64(entry[40:])) - start + 1
	}
	if start <= 0 || size <= 0 || start > maxImage/sector || size > maxImage/sector {
		return 0, 0, fmt.Errorf("the image has no partition %d", number)
	}
	return start * sector, size * sector, nil
}

// isGPT reports whether a disk that begins with b has a GPT, behind a protective or a hybrid MBR.
func isGPT(b []byte) bool { return b[446+4] == 0xee || string(b[sector:sector+8]) == "EFI PART" }

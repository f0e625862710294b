package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"rivulet/appliance/config"
)

// setName writes the name into a new configuration. An existing file is the user's and is not edited.
func setName(path, name string) (changed bool, err error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return writeFile(path, fmt.Appendf(nil, "# All that can be set: rivulet config example\nname: %s\n", name), 0o644)
	case err != nil:
		return false, fmt.Errorf("install: %w; look at the file", err)
	}
	if config.Parse(data, config.Options{File: path}).Config.Name == name {
		return false, nil
	}
	return false, fmt.Errorf("install: %s is there already and says nothing, or something else, of a name; set it there (name: %s), it is taken while the device runs, and leave --name out", path, name)
}

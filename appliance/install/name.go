package install

import "fmt"

// namePath is a drop-in of its own, so that another --name replaces it and no
// update of the unit does.
const namePath = "/etc/systemd/system/rivulet.service.d/name.conf"

func setName(name string) (changed bool, err error) {
	return writeFile(namePath, fmt.Appendf(nil, "# Of Rivulet: written by rivulet install --name\n[Service]\nEnvironment=RIVULET_NAME=%s\n", name), 0o644)
}

package appliance

import (
	"path/filepath"

	"rivulet/appliance/images"
)

// imagePlatforms says for which architectures the images are made that containerd here
// knows an index of. It reads two kinds of small files, and asks nobody.
func (s *System) imagePlatforms() (map[string][]string, error) {
	list, err := images.Load(s.imagesFile())
	if err != nil {
		return nil, err
	}
	return images.Architectures(filepath.Join(s.agentDir(), "containerd", contentDir), list), nil
}

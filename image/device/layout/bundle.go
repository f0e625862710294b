package layout

// Manifest is the first file of an update bundle, a tar of: manifest.json, the files of the slot's boot folder as
// boot/NAME, root.squashfs.
type Manifest struct {
	Version    string `json:"version"`    // as in `rivulet version` of the rivulet inside
	Kubernetes string `json:"kubernetes"` // likewise; an update to an older one is refused
	Arch       string `json:"arch"`       // GOARCH
	Files      []File `json:"files"`
}

// File is one file of a bundle, in the order of the tar.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Names in a bundle.
const (
	ManifestName = "manifest.json"
	RootName     = "root.squashfs"
	BootPrefix   = "boot/"
)

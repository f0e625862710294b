package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"rivulet/image/filesum"
)

// The bill of materials, as SPDX 2.3: Debian's packages with their hashes, and the Go modules of the product.
type spdx struct {
	Version   string         `json:"spdxVersion"`
	License   string         `json:"dataLicense"`
	ID        string         `json:"SPDXID"`
	Name      string         `json:"name"`
	Namespace string         `json:"documentNamespace"`
	Creation  spdxCreation   `json:"creationInfo"`
	Packages  []spdxPackage  `json:"packages"`
	Relations []spdxRelation `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID        string         `json:"SPDXID"`
	Name      string         `json:"name"`
	Version   string         `json:"versionInfo"`
	Location  string         `json:"downloadLocation"`
	Analyzed  bool           `json:"filesAnalyzed"`
	Checksums []spdxChecksum `json:"checksums,omitempty"`
	Refs      []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelation struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

func (j *job) sbom() ([]byte, error) {
	sum, _, err := filesum.SHA256(filepath.Join(j.work, "root.squashfs"))
	if err != nil {
		return nil, err
	}
	doc := spdx{Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "rivulet-" + j.version + "-" + j.arch,
		// Named by content: the same image has the same name.
		Namespace: "https://rivulet.dev/spdx/" + sum,
		Creation:  spdxCreation{j.epoch.Format(time.RFC3339), []string{"Tool: rivulet-image"}}}
	add := func(p spdxPackage) {
		p.ID, p.Location = fmt.Sprintf("SPDXRef-%d", len(doc.Packages)), "NOASSERTION"
		relation := spdxRelation{"SPDXRef-0", "CONTAINS", p.ID}
		if len(doc.Packages) == 0 {
			relation = spdxRelation{doc.ID, "DESCRIBES", p.ID}
		}
		doc.Packages, doc.Relations = append(doc.Packages, p), append(doc.Relations, relation)
	}
	add(spdxPackage{Name: "rivulet-image", Version: j.version})
	for _, d := range j.debs {
		add(spdxPackage{Name: d.Name, Version: d.Version, Checksums: []spdxChecksum{{"SHA256", d.SHA256}},
			Refs: []spdxRef{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", d.Name, d.Version, d.Arch, release)}}})
	}
	info, err := buildinfo.ReadFile(j.binary)
	if err != nil {
		return nil, fmt.Errorf("%s does not say what it is built of: %w", j.binary, err)
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		add(spdxPackage{Name: m.Path, Version: m.Version, Refs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}}})
	}
	return json.MarshalIndent(doc, "", " ")
}

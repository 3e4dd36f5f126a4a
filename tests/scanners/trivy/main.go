// What Trivy reads from a CycloneDX document, as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/aquasecurity/trivy/pkg/sbom/cyclonedx"
	"github.com/aquasecurity/trivy/pkg/sbom/io"
	"github.com/aquasecurity/trivy/pkg/types"
)

type read struct {
	Distribution string            `json:"distribution"`
	Sources      map[string]string `json:"sources"`
	Libraries    map[string]string `json:"libraries"`
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	var document cyclonedx.BOM
	if err := json.NewDecoder(file).Decode(&document); err != nil {
		panic(err)
	}
	var found types.SBOM
	if err := io.NewDecoder(document.BOM).Decode(context.Background(), &found); err != nil {
		panic(err)
	}
	said := read{Sources: map[string]string{}, Libraries: map[string]string{}}
	if os := found.Metadata.OS; os != nil {
		said.Distribution = string(os.Family) + " " + os.Name
	}
	for _, set := range found.Packages {
		for _, one := range set.Packages {
			said.Sources[one.Name] = one.SrcName
		}
	}
	for _, application := range found.Applications {
		for _, one := range application.Packages {
			said.Libraries[one.Name] = string(application.Type)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		panic(err)
	}
}

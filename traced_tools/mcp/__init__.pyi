from .serving import McpApp as McpApp
from .serving import McpServer as McpServer
from .serving import serve as serve
from .toolset import McpToolset as McpToolset
from .toolset import Sampling as Sampling

from psrun.cli import main

main()
